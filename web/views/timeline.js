// The timeline of a turn: its events, and the response and the machine as of the chosen one.
import { buildRows, describeRow, findRow } from "../lib/event-rows.js";
import { html } from "../lib/html.js";
import { findStep } from "../lib/state-table.js";
import { describeFinding } from "../lib/turns.js";
import { showHidden } from "../lib/visible.js";
import { ShortcutSwitch, shortcutsOn } from "../ui/frame.js";
import { useChosenEvent } from "../ui/hooks.js";
import { ShortText } from "../ui/text.js";
import { VirtualList } from "../ui/virtual-list.js";
import { useLayoutEffect, useMemo, useState } from "../vendor/hooks.js";
import { Moment } from "./moment.js";

/** @param {{log: TurnLog, findings: Json[]}} props */
export function Timeline({ log, findings }) {
  const [wanted, chooseEvent] = useChosenEvent();
  const [options, setOptions] = useState({ merge: true, itemsOnly: false, search: "" });
  const last = log.count - 1;
  const cursor = wanted === null ? last : Math.max(0, Math.min(wanted, last));
  const rows = useMemo(() => buildRows(log.fold.events, options), [log.fold, log.count, options]);
  const marks = useMemo(() => findingMarks(findings, log.fold.damage), [findings, log.fold, log.count]);

  const choose = (/** @type {number} */ n) => chooseEvent(Math.max(0, Math.min(last, n)));

  const row = findRow(rows, cursor);
  const draw = useMemo(
    () => (/** @type {number} */ i) => html`<${EventRow} log=${log} row=${rows[i]} marks=${marks} />`,
    [rows, marks],
  );
  return html`<section aria-label="Timeline">
    <${Controls} log=${log} cursor=${cursor} last=${last} options=${options} onChoose=${choose} onOptions=${setOptions} />
    <div class="timeline">
      <${VirtualList} label="Events" count=${rows.length} current=${row}
        draw=${draw}
        onChoose=${(/** @type {number} */ i) => choose(rows[i]?.last ?? 0)} />
      <${Moment} log=${log} cursor=${cursor} />
    </div>
    ${marks.size > 0 && html`<${MarkList} marks=${marks} onChoose=${choose} />`}
  </section>`;
}

/**
 * @param {{log: TurnLog, cursor: number, last: number, options: RowOptions,
 *   onChoose: (n: number) => void, onOptions: (options: RowOptions) => void}} props
 */
function Controls({ log, cursor, last, options, onChoose, onOptions }) {
  const line = findStep(log.lines, cursor);
  const { name, text } = describeRow(log.fold.events, { first: cursor, last: cursor });
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (event.key === "Enter") event.preventDefault();
  };
  useLayoutEffect(() => {
    /** @param {KeyboardEvent} event */
    const onSlash = (event) => {
      const typing =
        event.target instanceof HTMLElement && event.target.matches("input:not([type=range]), textarea, select");
      if (event.key !== "/" || typing || !shortcutsOn()) return;
      /** @type {HTMLElement | null} */ (document.querySelector("input[name=search]"))?.focus();
      event.preventDefault();
    };
    addEventListener("keydown", onSlash);
    return () => removeEventListener("keydown", onSlash);
  }, []);
  return html`<form class="controls" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()} onKeyDown=${onKeyDown}>
    <button type="button" aria-label="Event before" disabled=${cursor <= 0} onClick=${() => onChoose(cursor - 1)}>◀</button>
    <button type="button" aria-label="Next event" disabled=${cursor >= last} onClick=${() => onChoose(cursor + 1)}>▶</button>
    <input type="range" class="grow" aria-label="Event" min="0" max=${last} value=${cursor}
      aria-valuetext=${showHidden(`event ${cursor} of ${last}: ${name} ${text}`.slice(0, 160))}
      onInput=${(/** @type {any} */ event) => onChoose(Number(event.currentTarget.value))} />
    <span class="number" id="position">event ${cursor} of ${last}${typeof line["step"] === "number" ? ` · step ${line["step"]}` : ""}${
      typeof line["at_us"] === "number" ? ` · ${(line["at_us"] / 1e6).toFixed(3)} s` : ""
    }${log.reading ? " · reading …" : ""}</span>
    <label class="inline"><input type="checkbox" checked=${options.merge} onChange=${() => onOptions({ ...options, merge: !options.merge })} /> merge deltas</label>
    <label class="inline"><input type="checkbox" checked=${options.itemsOnly} onChange=${() => onOptions({ ...options, itemsOnly: !options.itemsOnly })} /> items only</label>
    <label class="inline">search <input name="search" type="search" value=${options.search} spellcheck=${false}
      onInput=${(/** @type {any} */ event) => onOptions({ ...options, search: event.currentTarget.value })} /></label>
    <${ShortcutSwitch} />
  </form>`;
}

/** @param {{log: TurnLog, row: Row | undefined, marks: Map<number, string[]>}} props */
function EventRow({ log, row, marks }) {
  if (row === undefined) return "";
  const { name, place, text } = describeRow(log.fold.events, row);
  let marked = false;
  for (let n = row.first; n <= row.last && marks.size > 0 && !marked; n++) marked = marks.has(n);
  return html`${marked && html`<strong class="bad">! </strong>`}<span class="number">${row.first}${row.last > row.first ? `–${row.last}` : ""}</span>
    <${ShortText} value=${name} /> ${place} ${text !== "" && html`<span class="faint"><${ShortText} value=${text} limit=${80} /></span>`}`;
}

/** @param {{marks: Map<number, string[]>, onChoose: (n: number) => void}} props */
function MarkList({ marks, onChoose }) {
  return html`<h2>Findings</h2><ul class="findings">${[...marks]
    .slice(0, 200)
    .flatMap(([n, messages]) =>
      messages.map(
        (message) =>
          html`<li><button type="button" onClick=${() => onChoose(n)}>event ${n}</button> <${ShortText} value=${message} limit=${400} /></li>`,
      ),
    )}</ul>`;
}

/** Returns what is said about events, by their number. @type {(findings: Json[], damage: {event: number, message: string}[]) => Map<number, string[]>} */
function findingMarks(findings, damage) {
  /** @type {Map<number, string[]>} */
  const marks = new Map();
  const add = (/** @type {unknown} */ n, /** @type {string} */ message) => {
    if (typeof n === "number") marks.set(n, [...(marks.get(n) ?? []), message]);
  };
  for (const finding of findings) {
    add(finding["event"] ?? 0, describeFinding(finding));
  }
  for (const { event, message } of damage) add(event, `damaged log: ${message}`);
  return marks;
}
