// A list of any length with a fixed number of elements: only the rows in sight exist.
import { html } from "../lib/html.js";
import { useLayoutEffect, useRef, useState } from "../vendor/hooks.js";

/** Height of a row in pixels. WCAG asks for targets of 24. */
export const ROW_HEIGHT = 24;
/** Elements for rows. A list in sight has at most so many, less those above and below. */
const POOL_SIZE = 48;
const ROWS_ABOVE = 6;
/** Rows beyond this number are out of reach by scrolling: browsers limit the height of an element. */
export const MAX_ROWS = 500_000;

/**
 * @param {object} props
 * @param {number} props.count
 * @param {number} props.current Index of the chosen row.
 * @param {string} props.label
 * @param {(index: number) => unknown} props.draw Returns the content of a row.
 * @param {(index: number) => void} props.onChoose
 */
export function VirtualList({ count, current, label, draw, onChoose }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [top, setTop] = useState(0);
  const shown = Math.min(count, MAX_ROWS);
  const start = Math.max(0, Math.min(Math.floor(top / ROW_HEIGHT) - ROWS_ABOVE, shown - POOL_SIZE));
  const end = Math.min(shown, start + POOL_SIZE);

  useLayoutEffect(() => {
    const element = box.current;
    if (element === null) return;
    const y = current * ROW_HEIGHT;
    if (y < element.scrollTop) element.scrollTop = y;
    else if (y + ROW_HEIGHT > element.scrollTop + element.clientHeight) {
      element.scrollTop = y + ROW_HEIGHT - element.clientHeight;
    }
    setTop(element.scrollTop);
  }, [current, shown]);

  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    const page = Math.max(1, Math.floor((box.current?.clientHeight ?? 0) / ROW_HEIGHT) - 1);
    const steps = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -count, End: count };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (step === undefined) return;
    event.preventDefault();
    onChoose(Math.max(0, Math.min(shown - 1, current + step)));
  };

  const rows = [];
  for (let index = start; index < end; index++) {
    rows.push(html`<div
      key=${index % POOL_SIZE} id=${`row-${index}`} class="row" role="option" aria-selected=${index === current}
      aria-setsize=${count} aria-posinset=${index + 1} onClick=${() => onChoose(index)}
      style=${{ transform: `translateY(${index * ROW_HEIGHT}px)` }}>${draw(index)}</div>`);
  }
  const active = current >= start && current < end ? `row-${current}` : null;
  return html`<div
    ref=${box} class="list" role="listbox" tabindex="0" aria-label=${label} aria-activedescendant=${active}
    onKeyDown=${onKeyDown} onScroll=${() => setTop(box.current?.scrollTop ?? 0)}>
    <div class="rows" role="presentation" style=${{ height: `${shown * ROW_HEIGHT}px` }}>${rows}</div>
  </div>`;
}
