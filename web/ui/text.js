// Shows text of others: nothing in it is hidden, and nothing in it is markup.
import { html } from "../lib/html.js";
import { splitVisible } from "../lib/visible.js";
import { useState } from "../vendor/hooks.js";

/** Characters that are shown at once. The rest is a step away: a browser stands still on lines of megabytes. */
export const MAX_SHOWN = 20_000;

/**
 * @param {{value: unknown, limit?: number}} props
 */
export function Text({ value, limit = MAX_SHOWN }) {
  const [shown, setShown] = useState(limit);
  const text = typeof value === "string" ? value : String(value ?? "");
  const rest = text.length - shown;
  return html`<bdi class="text">${drawPieces(rest > 0 ? text.slice(0, shown) : text)}</bdi>${
    rest > 0 &&
    html` <button type="button" class="more" onClick=${() => setShown(shown + 10 * limit)}>
      ${rest.toLocaleString("en")} more characters
    </button>`
  }`;
}

/** A short text on one line. @param {{value: unknown, limit?: number}} props */
export function ShortText({ value, limit = 120 }) {
  const text = typeof value === "string" ? value : String(value ?? "");
  const clipped = text.length > limit ? `${text.slice(0, limit)}…` : text;
  return html`<bdi class="text">${drawPieces(clipped.replaceAll("\n", "⏎"))}</bdi>`;
}

/** @type {(text: string) => unknown[]} */
function drawPieces(text) {
  return splitVisible(text).map((piece) =>
    piece.label === ""
      ? piece.text
      : html`<span class="picture" role="img" aria-label=${piece.label} title=${piece.label}>${piece.text}</span>`,
  );
}
