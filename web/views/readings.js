// One turn as each API would have sent it, side by side: a row for each event after which one of them sends something.
import { fetchLines, isAbort, turnPath } from "../lib/api.js";
import { html, takeValue } from "../lib/html.js";
import { addFrame, alignReadings, describeFrames, findNumber, READING_APIS } from "../lib/readings.js";
import { Failure } from "../ui/frame.js";
import { toFailure, useChosenEvent, useLoaded, useMedia } from "../ui/hooks.js";
import { JsonTree } from "../ui/json-tree.js";
import { ShortText } from "../ui/text.js";
import { VirtualList } from "../ui/virtual-list.js";
import { useMemo, useState } from "../vendor/hooks.js";

/** @typedef {{api: string, frames: ReadonlyMap<number, Frame[]>, failure: Fault}} Column */

/** Below this width there is room for one column. */
const NARROW = "(max-width: 40rem)";
/** Frames of one event that are drawn. */
const MAX_FRAMES = 100;

/** @param {{id: string, reading: boolean}} props `reading`: whether the log still grows. The readings are read again at its end. */
export function Readings({ id, reading }) {
  const [shown, setShown] = useState([...READING_APIS]);
  const [single, setSingle] = useState(READING_APIS[0] ?? "");
  const narrow = useMedia(NARROW);
  const { value, failure } = useLoaded(
    (signal) => Promise.all(READING_APIS.map((api) => readColumn(id, api, signal))),
    [id, reading],
  );
  if (value === null) return failure === null ? html`<p>Reading …</p>` : html`<${Failure} failure=${failure} />`;
  const columns = value.filter(({ api }) => (narrow ? api === single : shown.includes(api)));
  const toggle = (/** @type {string} */ api) =>
    setShown(READING_APIS.filter((each) => (each === api ? !shown.includes(api) : shown.includes(each))));
  return html`<section aria-label="Readings">
    <p class="switches">${
      narrow
        ? html`<label>API <select value=${single} onChange=${takeValue(setSingle)}>
            ${READING_APIS.map((api) => html`<option value=${api}>${api}</option>`)}</select></label>`
        : READING_APIS.map(
            (api) =>
              html`<label><input type="checkbox" checked=${shown.includes(api)} onChange=${() => toggle(api)} /> ${api}</label>`,
          )
    }</p>
    ${columns.map((column) => html`<${Failure} failure=${column.failure} />`)}
    <${Columns} columns=${columns} />
  </section>`;
}

/** @param {{columns: Column[]}} props */
function Columns({ columns }) {
  const [wanted, choose] = useChosenEvent();
  const names = columns.map(({ api }) => api).join();
  const numbers = useMemo(() => alignReadings(columns.map(({ frames }) => frames)), [names, columns[0]?.frames]);
  const row = wanted === null ? numbers.length - 1 : findNumber(numbers, wanted);
  const chosen = numbers[row];
  const draw = useMemo(
    () => (/** @type {number} */ i) => html`<${ReadingRow} columns=${columns} n=${numbers[i] ?? 0} />`,
    [numbers],
  );
  if (chosen === undefined) return html`<p>Nothing is sent in these readings.</p>`;
  return html`<div class="reading-names mono" aria-hidden="true"><span class="number">event</span>${columns.map(({ api }) => html`<span>${api}</span>`)}</div>
    <${VirtualList} label="What is sent after each event" count=${numbers.length} current=${row} draw=${draw}
      onChoose=${(/** @type {number} */ i) => choose(numbers[i] ?? 0)} />
    <h2 id="chosen-frames">${chosen < 0 ? "Before the first event" : `After event ${chosen}`}</h2>
    <div class="frames">${columns.map(
      ({ api, frames }) => html`<section key=${api} aria-label=${api}><h3>${api}</h3>
        <${Frames} key=${chosen} frames=${frames.get(chosen) ?? []} /></section>`,
    )}</div>`;
}

/** @param {{columns: Column[], n: number}} props */
function ReadingRow({ columns, n }) {
  return html`<span class="reading"><span class="number">${n < 0 ? "–" : n}</span>${columns.map(({ api, frames }) => {
    const sent = frames.get(n) ?? [];
    return html`<span class="cell"><span class="unseen">${api}: </span>${
      sent.length === 0
        ? html`<span class="unseen">nothing</span>`
        : html`<${ShortText} value=${describeFrames(sent)} />`
    }</span>`;
  })}</span>`;
}

/** @param {{frames: Frame[]}} props */
function Frames({ frames }) {
  if (frames.length === 0) return html`<p class="faint">– nothing</p>`;
  return html`<div class="mono">${frames
    .slice(0, MAX_FRAMES)
    .map(({ name, data }) => html`<${JsonTree} name=${name} value=${data} openLevels=${2} />`)}</div>
    ${frames.length > MAX_FRAMES && html`<p>${(frames.length - MAX_FRAMES).toLocaleString("en")} more frames</p>`}`;
}

/** @type {(id: string, api: string, signal: AbortSignal) => Promise<Column>} */
async function readColumn(id, api, signal) {
  /** @type {Map<number, Frame[]>} */
  const frames = new Map();
  try {
    for await (const line of fetchLines(turnPath(id, `/readings/${api}`), signal)) {
      if (line?.["error"] !== undefined)
        throw new Error(String(line["error"]?.["message"] ?? "the reading ends with an error"));
      addFrame(frames, line);
    }
    return { api, frames, failure: null };
  } catch (error) {
    if (isAbort(error)) throw error;
    return { api, frames, failure: { message: `${api}: ${toFailure(error).message}` } };
  }
}
