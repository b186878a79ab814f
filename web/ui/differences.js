// What two texts share and do not share. Removed and added parts have words and a line, not only a color.
import { clipEqual } from "../lib/comparison.js";
import { html } from "../lib/html.js";
import { useState } from "../vendor/hooks.js";
import { Text } from "./text.js";

/** @param {{changes: import("../lib/differences.js").Difference[], label: string}} props */
export function Differences({ changes, label }) {
  return html`<div class="request mono" tabindex="0" role="region" aria-label=${label}>${changes.map(
    ({ kind, text }, i) => {
      if (kind === "same") return html`<${Equal} text=${text} isFirst=${i === 0} isLast=${i === changes.length - 1} />`;
      const tag = kind === "added" ? "ins" : "del";
      return html`<${tag}><span class="unseen"> ${kind}: </span><${Text} value=${text} /></${tag}>`;
    },
  )}</div>`;
}

/** @param {{text: string, isFirst: boolean, isLast: boolean}} props */
function Equal({ text, isFirst, isLast }) {
  const [whole, setWhole] = useState(false);
  const { begin, left, end } = clipEqual(text, isFirst, isLast);
  if (whole || left === 0) return html`<${Text} value=${text} />`;
  return html`<${Text} value=${begin} /><button type="button" onClick=${() => setWhole(true)}>${left.toLocaleString("en")} equal characters</button><${Text} value=${end} />`;
}
