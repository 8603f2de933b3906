/** What the parts of the graph view agree on. */

/** The padding inside an open box, and the height of its title. */
export const PADDING = 12;
export const TITLE = 30;

/** Elements that are dragged instead of moving the picture. */
export const DRAGGABLE = "[data-drag], .far.closed";

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
