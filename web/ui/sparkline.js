// A curve of the latest values of a figure, a second a pixel. Its label says the last and the highest one.
import { html } from "../lib/html.js";
import { useLayoutEffect, useRef } from "../vendor/hooks.js";

const WIDTH = 300;
const HEIGHT = 32;

/** @param {{values: number[], label: string, format: (value: number) => string}} props */
export function Sparkline({ values, label, format }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const most = Math.max(0, ...values);
  useLayoutEffect(() => {
    const pen = canvas.current?.getContext("2d");
    if (!pen) return;
    pen.clearRect(0, 0, WIDTH, HEIGHT);
    pen.strokeStyle = getComputedStyle(pen.canvas).color;
    pen.beginPath();
    for (const [i, value] of values.entries())
      pen.lineTo(WIDTH - values.length + i, HEIGHT - 1 - (value / (most || 1)) * (HEIGHT - 2));
    pen.stroke();
  });
  return html`<canvas ref=${canvas} class="sparkline" width=${WIDTH} height=${HEIGHT} role="img"
    aria-label=${`${label}, ${values.length} s: now ${format(values.at(-1) ?? 0)}, at most ${format(most)}`}></canvas>`;
}
