// The machine and the response as of one event, and what that event changed.
import { readRoute, viewAddress } from "../lib/addresses.js";
import { fetchJson } from "../lib/api.js";
import { formatPath } from "../lib/event-paths.js";
import { html } from "../lib/html.js";
import { findCell, findStep, readSteps, readTable } from "../lib/state-table.js";
import { useLoaded } from "../ui/hooks.js";
import { JsonTree } from "../ui/json-tree.js";
import { ShortText } from "../ui/text.js";
import { useLayoutEffect, useMemo, useRef } from "../vendor/hooks.js";

/** Of the response, its output is open at first: the list, the items, their content and its parts. */
const OPEN_CHILDREN = new Map([["output", 4]]);

/** @param {{log: TurnLog, cursor: number}} props */
export function Moment({ log, cursor }) {
  const { value } = useLoaded((signal) => fetchJson("v1/inspect/table", signal), []);
  const table = useMemo(() => (value === null ? null : readTable(value)), [value]);
  const response = useMemo(() => log.fold.asOf(cursor), [log.fold, cursor, log.count]);
  const change = log.fold.changeOf(cursor);
  return html`<div class="machine">${table !== null && html`<${Machine} table=${table} line=${findStep(log.lines, cursor)} />`}
      <${Ledger} lines=${log.lines} cursor=${cursor} /></div>
    <div class="response">
      <h2>Response as of event ${cursor}</h2>
      <${Changed} change=${change} cursor=${cursor} />
      <${ForkLink} change=${change} />
      <div class="mono"><${JsonTree} value=${response} openLevels=${1} openChildren=${OPEN_CHILDREN} /></div>
      <details><summary>Event ${cursor} as it was sent</summary>
        <div class="mono"><${JsonTree} value=${log.fold.events[cursor]} openLevels=${1} /></div></details>
    </div>`;
}

/** @param {{change: Change, cursor: number}} props */
function Changed({ change, cursor }) {
  if (change.kind === "response") return html`<p id="changed">Event ${cursor} carries the whole response.</p>`;
  if (change.kind === "none") return html`<p id="changed">Event ${cursor} changes nothing in the response.</p>`;
  const path = html`<code>${formatPath(change.path)}</code>`;
  if (change.kind === "append")
    return html`<p id="changed">Event ${cursor} appends to ${path}: <ins><${ShortText} value=${change.text} /></ins></p>`;
  return html`<p id="changed">Event ${cursor} sets ${path}.</p>`;
}

/** Begins a fork with the items up to the one that an event is about. @param {{change: Change}} props */
function ForkLink({ change }) {
  if (!("path" in change)) return "";
  const fields = { fork: readRoute(location.pathname).id, output: String(change.path[1]) };
  return html`<p><a href=${viewAddress("play", fields)}>Fork after this item</a></p>`;
}

/** @param {{table: StateTable, line: Json}} props */
function Machine({ table, line }) {
  const steps = readSteps(table, line["cells"]);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const ran = new Map(steps.map((step, i) => [`${step.state} ${step.input}`, i]));
  const path = [...ran.keys()].join();
  useLayoutEffect(() => showCell(box.current), [path]);
  // Most of the elements of the view; they change less often than the event.
  const cells = useMemo(() => drawCells(table, ran), [table, path]);
  return html`<h2>State machine</h2>
    <p id="step">${
      steps.length === 0
        ? "Inputs of this step were not recorded."
        : steps.map(
            (step) =>
              html`<span class="step">state <strong>${step.state}</strong>, input <strong>${step.input}</strong> → ${step.verbs.join(" ")} → ${step.next}</span> `,
          )
    }</p>
    <div ref=${box} class="wide" tabindex="0" role="region" aria-label="State table">
      ${cells}
    </div>`;
}

/** @param {StateTable} table @param {ReadonlyMap<string, number>} ran */
function drawCells(table, ran) {
  return html`<table class="cells"><caption class="unseen">Verbs by input and state; the cells that ran are marked</caption>
    <thead><tr><th scope="col">in \\ on</th>${table.states.map((state) => html`<th scope="col">${state}</th>`)}</tr></thead>
    <tbody>${table.inputs.map(
      (input) =>
        html`<tr><th scope="row">${input}</th>${table.states.map(
          (state) =>
            html`<${CellView} cell=${findCell(table, state, input)} state=${state} order=${ran.get(`${state} ${input}`)} />`,
        )}</tr>`,
    )}</tbody>
  </table>`;
}

/** Scrolls the table, and nothing else, to the last cell that ran. @param {HTMLElement | null} box */
function showCell(box) {
  const cell = [...(box?.querySelectorAll(".ran") ?? [])].at(-1);
  if (box === null || !(cell instanceof HTMLElement)) return;
  box.scrollTop = Math.max(0, cell.offsetTop - box.clientHeight / 2);
  box.scrollLeft = Math.max(0, cell.offsetLeft - box.clientWidth / 2);
}

/** @param {{cell: Cell | null, state: string, order: number | undefined}} props */
function CellView({ cell, state, order }) {
  if (cell === null)
    return html`<td class="illegal"><span aria-hidden="true">✕</span><span class="unseen">illegal</span></td>`;
  const next = cell.next === state ? "=" : `${cell.next}:`;
  return html`<td class=${order === undefined ? null : "ran"} title=${cell.guard === "" ? null : `only if: ${cell.guard}`}>
    ${order !== undefined && html`<span class="unseen">ran: </span>▣ `}${next} ${cell.verbs.join(" ")}</td>`;
}

/** What the engine generated up to an event, by the details that were recorded. @param {{lines: Json[], cursor: number}} props */
function Ledger({ lines, cursor }) {
  const sums = useMemo(() => sumDetails(lines), [lines, lines.length]);
  const { tokens, dropped } = sums[cursor] ?? { tokens: 0, dropped: 0 };
  const total = sums.at(-1)?.tokens ?? 0;
  if (total === 0) return html`<p>Tokens of steps were not recorded.</p>`;
  return html`<p id="ledger">${tokens.toLocaleString("en")} of ${total.toLocaleString("en")} tokens generated${
    dropped > 0 ? `, ${dropped.toLocaleString("en")} characters of white space in no event` : ""
  }</p>`;
}

/** Returns the number of tokens, and of characters that no event has, up to each line. @param {Json[]} lines */
function sumDetails(lines) {
  let tokens = 0;
  let dropped = 0;
  return lines.map(({ detail }) => {
    tokens += Array.isArray(detail?.["tokens"]) ? detail["tokens"].length : 0;
    dropped += typeof detail?.["dropped_text"] === "string" ? detail["dropped_text"].length : 0;
    return { tokens, dropped };
  });
}
