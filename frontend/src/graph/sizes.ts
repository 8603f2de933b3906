/** What the parts of the graph view agree on. */

/** Around what is inside of an open box, and above it for its title. */
export const PADDING = 12;
export const TITLE = 30;

/** What a press begins to drag, instead of moving the picture. */
export const DRAGGABLE = "[data-drag], .far.closed";

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
