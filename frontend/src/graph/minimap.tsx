import { useEffect, useRef } from "preact/hooks";
import { isDark, resolve } from "../frame/theme";
import { camera } from "./camera";
import { scene } from "./state";

const SIZE = { w: 130, h: 110 };

/** The whole graph in a corner, while only a part of it is visible. */
export function Minimap() {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { k, x, y } = camera.transform.value;
  const { w, h } = camera.size;
  const drawn = scene.value;
  const scale = Math.min(SIZE.w / drawn.w, SIZE.h / drawn.h);
  const isHidden = drawn.w * k <= w && drawn.h * k <= h;
  useEffect(() => {
    if (!isHidden && canvas.current) paintBoxes(canvas.current, scale);
  }, [drawn, isHidden, isDark.value]);
  if (isHidden || !drawn.boxes.length) return null;
  const move = (event: PointerEvent) => {
    if (!event.buttons && event.type !== "pointerdown") return;
    const around = (event.currentTarget as Element).getBoundingClientRect();
    camera.moveTo((event.clientX - around.left) / scale, (event.clientY - around.top) / scale);
  };
  const [width, height] = [Math.max(8, drawn.w * scale), Math.max(8, drawn.h * scale)];
  const seen = {
    left: `${Math.max(0, (-x / k) * scale)}px`,
    top: `${Math.max(0, (-y / k) * scale)}px`,
    width: `${Math.min(width, (w / k) * scale)}px`,
    height: `${Math.min(height, (h / k) * scale)}px`,
  };
  return (
    <div
      class="minimap"
      data-testid="minimap"
      aria-hidden="true"
      style={{ width: `${width}px`, height: `${height}px` }}
      onPointerDown={move}
      onPointerMove={move}
    >
      <canvas ref={canvas} />
      <i style={seen} />
    </div>
  );
}

function paintBoxes(canvas: HTMLCanvasElement, scale: number): void {
  const unit = devicePixelRatio;
  const drawn = scene.peek();
  canvas.width = Math.ceil(drawn.w * scale * unit);
  canvas.height = Math.ceil(drawn.h * scale * unit);
  canvas.style.width = `${drawn.w * scale}px`;
  canvas.style.height = `${drawn.h * scale}px`;
  const context = canvas.getContext("2d")!;
  context.scale(scale * unit, scale * unit);
  const [open, closed] = [resolve("line"), resolve("bar")];
  for (const box of drawn.boxes) {
    context.fillStyle = box.open ? open : closed;
    context.fillRect(box.x, box.y, box.w, box.h);
  }
}
