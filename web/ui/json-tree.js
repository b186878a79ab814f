// A JSON value as a tree. The children of a node exist once it is open, so depth and size cost nothing before.
import { html } from "../lib/html.js";
import { useState } from "../vendor/hooks.js";
import { ShortText, Text } from "./text.js";

/** Children that an open node shows before it is asked for more. */
const PAGE = 100;
/**
 * Of a list whose children are open, so many at its end are shown at first: all of them change with the list. Their
 * elements are those of the ones shown before, so what is opened in the last child stays open in the next last one.
 */
const END = 4;
const MAX_STRING = 2000;

/** @type {ReadonlyMap<string, number>} */
const NONE = new Map();

/**
 * `openLevels`: levels that are open at first; `openChildren`: those of some children, by name.
 * @param {{name?: string, value: unknown, openLevels?: number, openChildren?: ReadonlyMap<string, number>}} props
 */
export function JsonTree({ name = "", value, openLevels = 0, openChildren = NONE }) {
  const label = name !== "" && html`<span class="key"><${ShortText} value=${name} /></span>: `;
  if (typeof value !== "object" || value === null)
    return html`<div class="leaf">${label}<${Leaf} value=${value} /></div>`;
  return html`<${Branch} label=${label} value=${value} openLevels=${openLevels} openChildren=${openChildren} />`;
}

/** @param {{label: unknown, value: object, openLevels: number, openChildren: ReadonlyMap<string, number>}} props */
function Branch({ label, value, openLevels, openChildren }) {
  const [open, setOpen] = useState(openLevels > 0);
  const [shown, setShown] = useState(PAGE);
  const isList = Array.isArray(value);
  const [whole, setWhole] = useState(false);
  const size = isList ? value.length : Object.keys(value).length;
  /** @param {Event} event */
  const onToggle = (event) => setOpen(/** @type {HTMLDetailsElement} */ (event.currentTarget).open);
  const before = isList && openLevels > 1 && !whole ? Math.max(0, size - END) : 0;
  return html`<details class="branch" open=${open} onToggle=${onToggle}>
    <summary>${label}${isList ? `[${size}]` : `{${size}}`}</summary>
    ${open && before > 0 && html`<button type="button" onClick=${() => setWhole(true)}>${before.toLocaleString("en")} before</button>`}
    ${open && listChildren(value, before, before + shown).map(([key, child], i) => html`<${JsonTree} key=${isList ? i : key} name=${key} value=${child} openLevels=${openChildren.get(key) ?? openLevels - 1} />`)}
    ${open && size > before + shown && html`<button type="button" onClick=${() => setShown(shown + PAGE)}>${(size - before - shown).toLocaleString("en")} more</button>`}
  </details>`;
}

/** @type {(value: object, first: number, end: number) => [string, unknown][]} */
function listChildren(value, first, end) {
  if (Array.isArray(value)) return value.slice(first, end).map((child, i) => [String(first + i), child]);
  return Object.keys(value)
    .slice(first, end)
    .map((key) => [key, /** @type {any} */ (value)[key]]);
}

/** @param {{value: unknown}} props */
function Leaf({ value }) {
  if (typeof value !== "string") return html`<span class="atom">${String(value)}</span>`;
  return html`<span class="string">"<${Text} value=${value} limit=${MAX_STRING} />"</span>`;
}
