// A list of any length with a fixed number of elements: only the rows in sight exist.
import { html } from "../lib/html.js";
import { useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";

/** Height of a row in pixels. WCAG asks for targets of 24. */
export const ROW_HEIGHT = 24;
/** Most elements for rows, also on the highest screen. */
const POOL_SIZE = 48;
/** Rows that exist above and below those in sight. */
const ROWS_ASIDE = 4;
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
  const before = useRef(-1);
  const shown = Math.min(count, MAX_ROWS);
  // A newly chosen row is in sight from the first drawing on: it would be drawn twice if the scrolling came first.
  const height = box.current?.clientHeight ?? 0;
  const view = before.current === current ? top : topWithRow(current, top, height);
  const size = height === 0 ? POOL_SIZE : Math.min(POOL_SIZE, Math.ceil(height / ROW_HEIGHT) + 2 * ROWS_ASIDE);
  const start = Math.max(0, Math.min(Math.floor(view / ROW_HEIGHT) - ROWS_ASIDE, shown - size));
  const end = Math.min(shown, start + size);

  useLayoutEffect(() => {
    const element = box.current;
    if (element === null) return;
    before.current = current;
    element.scrollTop = topWithRow(current, element.scrollTop, element.clientHeight);
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
    rows.push(
      html`<${Row} key=${index % POOL_SIZE} index=${index} count=${count} draw=${draw} onChoose=${onChoose} chosen=${index === current} />`,
    );
  }
  const active = current >= start && current < end ? `row-${current}` : null;
  return html`<div
    ref=${box} class="list" role="listbox" tabindex="0" aria-label=${label} aria-activedescendant=${active}
    onKeyDown=${onKeyDown} onScroll=${() => setTop(box.current?.scrollTop ?? 0)}>
    <div class="rows" role="presentation" style=${{ height: `${shown * ROW_HEIGHT}px` }}>${rows}</div>
  </div>`;
}

/** Returns where to scroll to so that a row is in sight: nowhere, if it is. @type {(row: number, top: number, height: number) => number} */
function topWithRow(row, top, height) {
  const y = row * ROW_HEIGHT;
  return y < top ? y : Math.max(top, y + ROW_HEIGHT - height);
}

/**
 * A row is drawn again only if it changes: most stay as they are when another one is chosen.
 * @param {{index: number, count: number, chosen: boolean, draw: (index: number) => unknown, onChoose: (index: number) => void}} props
 */
function Row({ index, count, chosen, draw, onChoose }) {
  const choose = useRef(onChoose);
  choose.current = onChoose;
  return useMemo(
    () => html`<div
      id=${`row-${index}`} class="row" role="option" aria-selected=${chosen}
      aria-setsize=${count} aria-posinset=${index + 1} onClick=${() => choose.current(index)}
      style=${{ transform: `translateY(${index * ROW_HEIGHT}px)` }}>${draw(index)}</div>`,
    [index, count, chosen, draw],
  );
}
