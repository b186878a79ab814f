// One turn: how it ended, its times, and its timeline.
import { viewAddress } from "../lib/addresses.js";
import { fetchJson } from "../lib/api.js";
import { html } from "../lib/html.js";
import { decodeRate, describeEnding, formatCount, formatSeconds, listPhases, readTurn } from "../lib/turns.js";
import { Failure } from "../ui/frame.js";
import { useLoaded } from "../ui/hooks.js";
import { ShortText } from "../ui/text.js";
import { useEffect, useState } from "../vendor/hooks.js";
import { ExportMenu } from "./export-menu.js";
import { Output } from "./output.js";
import { Prompt } from "./prompt.js";
import { Readings } from "./readings.js";
import { RequestBody } from "./request.js";
import { Timeline } from "./timeline.js";
import { useTurnLog } from "./turn-log.js";

/** @typedef {Record<string, any>} Json */

/** Parts of the page, by the name that the address has for them. @type {readonly [string, string][]} */
const PARTS = [
  ["timeline", "Timeline"],
  ["prompt", "Prompt"],
  ["output", "Output"],
  ["request", "Request"],
  ["readings", "Readings"],
];

/** @param {{id: string}} props */
export function Turn({ id }) {
  const view = new URLSearchParams(location.search).get("view");
  const part = PARTS.find(([name]) => name === view)?.[0] ?? "timeline";
  const path = `v1/inspect/turns/${encodeURIComponent(id)}`;
  const [follow, setFollow] = useState(/** @type {boolean | null} */ (null));
  const log = useTurnLog(id, follow);
  // Read again when the log has ended: the ending is known then.
  const { value: record, failure } = useLoaded((signal) => fetchJson(path, signal), [id, log.reading]);
  useEffect(() => {
    if (follow === null && (record !== null || failure !== null)) setFollow(record !== null && isRunning(record));
  }, [record, failure]);
  const { value: found } = useLoaded((signal) => fetchJson(`${path}/findings`, signal), [id, log.reading]);
  /** @type {Json[]} */
  const findings = Array.isArray(found?.data) ? found.data : [];
  return html`<h1><${ShortText} value=${id} /></h1>
    <${Failure} failure=${failure ?? log.failure} />
    ${
      record !== null &&
      html`<${TurnSummary} record=${record} findings=${findings.length} />
      <p><a href=${viewAddress("compare", { a: id })}>Compare</a></p><${ExportMenu} id=${id} />`
    }
    <${Parts} current=${part} />
    ${part === "prompt" && html`<${Prompt} id=${id} />`}
    ${part === "output" && html`<${Output} log=${log} />`}
    ${part === "request" && html`<${RequestBody} id=${id} />`}
    ${part === "readings" && html`<${Readings} id=${id} reading=${log.reading} />`}
    ${part === "timeline" && log.count > 0 && html`<${Timeline} log=${log} findings=${findings} />`}
    ${part === "timeline" && log.count === 0 && !log.reading && log.failure === null && html`<p>This turn has no events.</p>`}`;
}

/** @param {{current: string}} props */
function Parts({ current }) {
  return html`<nav class="parts" aria-label="Parts of the turn">
    ${PARTS.map(
      ([name, label]) =>
        html`<a href=${name === "timeline" ? location.pathname : `?view=${name}`} aria-current=${current === name ? "page" : null}>${label}</a>`,
    )}
  </nav>`;
}

/** @type {(record: Json) => boolean} */
function isRunning(record) {
  return readTurn(record).cause === "" && ["in_progress", "queued"].includes(String(record["status"]));
}

/** @param {{record: Json, findings: number}} props */
function TurnSummary({ record, findings }) {
  const turn = readTurn(record);
  const ending = describeEnding(turn);
  const phases = listPhases(record["times_ms"]);
  const rate = decodeRate(turn, phases);
  return html`<p class="ending">
      <span class=${ending.kind}>${ending.sign} <${ShortText} value=${ending.words} /></span>
      ${turn.sentence !== "" && html` — <${ShortText} value=${turn.sentence} limit=${300} />`}
      ${turn.detail !== "" && html` (<${ShortText} value=${turn.detail} />)`}
      ${findings > 0 && html` · <strong>! ${findings} ${findings === 1 ? "finding" : "findings"}</strong>`}
    </p>
    <dl class="figures">
      <${Figure} name="model"><${ShortText} value=${turn.model} /><//>
      ${phases.map(([name, seconds]) => html`<${Figure} name=${name}>${formatSeconds(seconds)}<//>`)}
      <${Figure} name="tokens in (cached)">${formatCount(turn.input)} (${formatCount(turn.cached)})<//>
      ${rate !== null && html`<${Figure} name="tokens a second">${rate.toFixed(rate < 10 ? 1 : 0)}<//>`}
      <${Figure} name="tokens out">${formatCount(turn.output)}<//>
    </dl>`;
}

/** @param {{name: string, children?: unknown}} props */
function Figure({ name, children }) {
  return html`<div><dt>${name}</dt><dd>${children}</dd></div>`;
}
