// Two turns side by side: their figures, and where their requests, prompts, outputs and events differ.
import { turnAddress, viewAddress } from "../lib/addresses.js";
import { fetchJson, fetchText, turnPath } from "../lib/api.js";
import { clipEqual, comparePrompts, diffJson, diffTexts, findParting } from "../lib/differences.js";
import { describeRow } from "../lib/event-rows.js";
import { html } from "../lib/html.js";
import {
  describeEnding,
  formatCount,
  formatSeconds,
  itemText,
  listItems,
  listPhases,
  readJson,
  readMissing,
  readTurn,
} from "../lib/turns.js";
import { Failure } from "../ui/frame.js";
import { useLoaded } from "../ui/hooks.js";
import { JsonTree } from "../ui/json-tree.js";
import { ShortText, Text } from "../ui/text.js";
import { useMemo, useState } from "../vendor/hooks.js";
import { readRuns } from "./prompt.js";
import { useTurnLog } from "./turn-log.js";

/** @typedef {Difference[] | null} Changes */

/** Tokens of a prompt that are compared. */
const MAX_TOKENS = 200_000;
const SIDES = ["first", "second"];

export function Compare() {
  const fields = new URLSearchParams(location.search);
  const [ids, setIds] = useState([fields.get("a") ?? "", fields.get("b") ?? ""]);
  const { value } = useLoaded((signal) => fetchJson("v1/inspect/turns?limit=50", signal), []);
  /** @type {Json[]} */
  const turns = Array.isArray(value?.data) ? value.data : [];
  const [a = "", b = ""] = ids;
  const isReady = ids.every((id) => turnAddress(id) !== null);
  /** @param {SubmitEvent} event */
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.currentTarget));
    const chosen = SIDES.map((side) => String(form.get(side) ?? "").trim());
    history.replaceState(null, "", viewAddress("compare", { a: chosen[0] ?? "", b: chosen[1] ?? "" }));
    setIds(chosen);
  };
  return html`<h1>Compare</h1>
    <form class="filters" onSubmit=${submit}>
      ${SIDES.map((side, i) => html`<label class="grow">${side} turn <input name=${side} list="turns" required value=${ids[i]} spellcheck=${false} /></label>`)}
      <datalist id="turns">${turns.map((turn) => html`<option value=${String(turn["id"])} />`)}</datalist>
      <button type="submit">Compare</button>
    </form>
    ${isReady ? html`<${Pair} key=${ids.join(" ")} a=${a} b=${b} />` : html`<p>Choose two turns by their ids.</p>`}`;
}

/** @param {{a: string, b: string}} props */
function Pair({ a, b }) {
  const { value, failure } = useLoaded((signal) => Promise.all([a, b].map((id) => readSide(id, signal))), [a, b]);
  const logs = [useTurnLog(a, false), useTurnLog(b, false)];
  const reading = logs.some((log) => log.reading);
  const [before, after] = value ?? [];
  const request = useMemo(
    () => compute(() => before && after && diffJson(before.request.value, after.request.value)),
    [value],
  );
  const prompt = useMemo(() => before && after && comparePrompts(before.prompt.tokens, after.prompt.tokens), [value]);
  const output = useMemo(() => {
    const [text = "", other = ""] = reading ? [] : logs.map(writeOutput);
    return compute(() => diffTexts(text, other));
  }, [reading]);
  if (failure !== null) return html`<${Failure} failure=${failure} />`;
  if (before === undefined || after === undefined || prompt === undefined || reading) return html`<p>Reading …</p>`;
  const sizes = [before, after].map((side) => formatCount(side.prompt.tokens.length)).join(" and ");
  return html`${logs.map((log) => html`<${Failure} failure=${log.failure} />`)}
    <${Figures} before=${before.record} after=${after.record} />
    <${Parting} a=${a} b=${b} logs=${logs} />
    <${Part} title="Output" changes=${output} missing="" />
    <${Part} title="Request" changes=${request} missing=${before.request.missing || after.request.missing} />
    <${Part} title="Prompt" changes=${prompt.changes} missing=${before.prompt.missing || after.prompt.missing}
      note=${`${sizes} tokens, of which the first ${formatCount(prompt.common)} are the same.`} />`;
}

/** @param {string} id @param {AbortSignal} signal */
async function readSide(id, signal) {
  const path = turnPath(id);
  const [record, { text }, { runs, missing }] = await Promise.all([
    fetchJson(path, signal),
    fetchText(`${path}/request`, signal),
    readRuns(id, MAX_TOKENS, signal),
  ]);
  const value = readJson(text)?.value ?? text;
  const tokens = runs.flatMap((run) =>
    run["ids"].map((/** @type {unknown} */ token, /** @type {number} */ i) => ({
      id: token,
      text: String(run["texts"]?.[i] ?? ""),
    })),
  );
  return { record, request: { value, missing: readMissing(value) ?? "" }, prompt: { tokens, missing } };
}

/** Returns a comparison; null for values that are nested too deep to be written. @type {<T>(compare: () => T) => T | null} */
function compute(compare) {
  try {
    return compare();
  } catch (error) {
    if (error instanceof RangeError) return null;
    throw error;
  }
}

/** @type {(log: TurnLog) => string} */
function writeOutput({ fold, count }) {
  return listItems(fold.asOf(count - 1))
    .map((item) => `${item["type"]}: ${itemText(item)}\n`)
    .join("\n");
}

/** @param {{title: string, changes: Changes | undefined, missing: string, note?: string}} props */
function Part({ title, changes, missing, note = "" }) {
  const same = changes?.every((change) => change.kind === "same");
  return html`<section aria-label=${title}><h2>${title}</h2>
    ${missing === "" ? html`<p>${note} ${same && "There is no difference."}</p>` : html`<p><${ShortText} value=${missing} limit=${300} /></p>`}
    ${missing === "" && !changes && html`<p>They differ in more than can be compared in a moment.</p>`}
    ${missing === "" && changes && !same && html`<${Differences} changes=${changes} label=${`Differences of ${title}`} />`}
  </section>`;
}

/** @param {{before: Json, after: Json}} props */
function Figures({ before, after }) {
  const columns = [before, after].map(listFigures);
  const names = [...new Set(columns.flatMap((column) => [...column.keys()]))];
  return html`<div class="wide"><table><caption>Figures</caption>
    <thead><tr><th scope="col">figure</th>${SIDES.map((side) => html`<th scope="col">${side}</th>`)}<th scope="col">differs</th></tr></thead>
    <tbody>${names.map((name) => {
      const [first = "–", second = "–"] = columns.map((column) => column.get(name));
      return html`<tr><th scope="row">${name}</th>
        ${[first, second].map((text) => html`<td><${ShortText} value=${text} /></td>`)}
        <td>${first === second ? "" : "≠ yes"}</td></tr>`;
    })}</tbody></table></div>`;
}

/** @param {Json} record @returns {Map<string, string>} */
function listFigures(record) {
  const turn = readTurn(record);
  const ending = describeEnding(turn);
  return new Map([
    ["api", turn.api],
    ["model", turn.model],
    ["ending", `${ending.sign} ${ending.words} ${turn.detail}`],
    ["tokens in", formatCount(turn.input)],
    ["tokens cached", formatCount(turn.cached)],
    ["tokens out", formatCount(turn.output)],
    ["tools", turn.tools.join(", ")],
    ["time taken", formatSeconds(turn.seconds)],
    .../** @type {[string, string][]} */ (
      listPhases(record["times_ms"]).map(([name, seconds]) => [name, formatSeconds(seconds)])
    ),
  ]);
}

/** The first event that differs. @param {{a: string, b: string, logs: TurnLog[]}} props */
function Parting({ a, b, logs }) {
  const all = logs.map((log) => log.fold.events);
  const numbers = useMemo(() => compute(() => findParting(all[0] ?? [], all[1] ?? [])), [all[0], all[1]]);
  return html`<section aria-label="First event that differs"><h2>First event that differs</h2>
    ${numbers === null && html`<p>Their events are the same but for names, times and sizes of pieces.</p>`}
    ${
      numbers !== null &&
      html`<div class="frames">${[a, b].map((id, i) => {
        const n = numbers[i];
        const events = all[i] ?? [];
        if (typeof n !== "number") return html`<p>The ${SIDES[i]} turn has ended before.</p>`;
        const { name, place, text } = describeRow(events, { first: n, last: n });
        return html`<div><p>${SIDES[i]}: <a href=${`${turnAddress(id)}#event=${n}`}>event ${n}</a> <${ShortText} value=${`${name} ${place} ${text}`} /></p>
          <div class="mono"><${JsonTree} value=${events[n]} openLevels=${1} /></div></div>`;
      })}</div>`
    }</section>`;
}

/** Removed and added parts have words and a line, not only a color. @param {{changes: Difference[], label: string}} props */
function Differences({ changes, label }) {
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
