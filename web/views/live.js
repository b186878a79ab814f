// What the server does now: its turns, engines and memory, once a second.
import { turnAddress } from "../lib/addresses.js";
import { cancelTurn, fetchEvents, isAbort } from "../lib/api.js";
import { html } from "../lib/html.js";
import { extendSeries, formatBytes, formatRate, readFrame } from "../lib/live.js";
import { keyVersion } from "../lib/session.js";
import { formatCount, formatSeconds } from "../lib/turns.js";
import { Failure } from "../ui/frame.js";
import { toFailure, useSignal } from "../ui/hooks.js";
import { JsonTree } from "../ui/json-tree.js";
import { ShortText } from "../ui/text.js";
import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";

/** @typedef {LiveFrame["sums"][]} Series */

/** Size of a curve, in pixels. */
const WIDTH = 300;
const HEIGHT = 32;
/** Time before the next attempt, after the stream has ended, in milliseconds. */
const RETRY_MS = 2000;
/** @type {[import("../lib/live.js").SeriesName, string, (value: number) => string][]} */
const CURVES = [
  ["rate", "tokens a second", formatRate],
  ["running", "running", String],
  ["waiting", "waiting", String],
  ["bytes", "memory", formatBytes],
];

export function Live() {
  const [on, setOn] = useState(true);
  const { frame, series, failure } = useFrames(on);
  return html`<h1>Live</h1>
    <p class="switches">
      <label><input type="checkbox" checked=${on} onChange=${() => setOn(!on)} /> live</label>
      ${frame?.at && html`<span class="faint">as of ${new Date(frame.at * 1000).toLocaleTimeString("en-GB")}</span>`}
    </p>
    <${Failure} failure=${failure} />
    ${
      frame !== null &&
      html`<dl class="figures curves">${CURVES.map(
        ([name, label, format]) => html`<div><dt>${label}</dt><dd>${format(frame.sums[name])}
          <${Sparkline} values=${series.map((sums) => sums[name])} label=${label} format=${format} /></dd></div>`,
      )}</dl>
      <${Turns} frame=${frame} />
      <${Engines} engines=${frame.engines} />
      <${Processes} processes=${frame.processes} />`
    }`;
}

/** Returns the latest frame and the sums of all. The stream is opened again when it has ended. @param {boolean} on */
function useFrames(on) {
  const version = useSignal(keyVersion);
  const [frame, setFrame] = useState(/** @type {LiveFrame | null} */ (null));
  const [series, setSeries] = useState(/** @type {Series} */ ([]));
  const [failure, setFailure] = useState(/** @type {Fault} */ (null));
  const [round, setRound] = useState(0);
  const before = useRef(/** @type {Record<string, any> | null} */ (null));
  useEffect(() => {
    if (!on) return;
    const abort = new AbortController();
    let timer = 0;
    const read = async () => {
      for await (const json of fetchEvents("v1/inspect/live", abort.signal)) {
        const next = readFrame(json, before.current);
        before.current = json;
        setFailure(null);
        setFrame(next);
        setSeries((known) => extendSeries(known, next.sums));
      }
      throw new Error("the stream has ended");
    };
    read().catch((error) => {
      if (isAbort(error)) return;
      setFailure(toFailure(error));
      timer = setTimeout(() => setRound((n) => n + 1), RETRY_MS);
    });
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [on, round, version]);
  return { frame, series, failure };
}

/** @param {{frame: LiveFrame}} props */
function Turns({ frame }) {
  const [failure, setFailure] = useState(/** @type {Fault} */ (null));
  const cancel = (/** @type {string} */ id) => {
    setFailure(null);
    cancelTurn(id).catch((error) => setFailure(toFailure(error)));
  };
  const names = ["id", "api", "model", "stage", "in (cached)", "out", "time so far", "tokens a second", "background"];
  return html`<h2>Turns</h2>
    <${Failure} failure=${failure} />
    ${frame.turns.length === 0 && html`<p>No turn of this key runs now.</p>`}
    ${frame.others !== null && frame.others > 0 && html`<p>${formatCount(frame.others)} of other keys</p>`}
    ${
      frame.turns.length > 0 &&
      html`<${Table} caption="Turns that run" names=${names} rows=${frame.turns.map((turn) => {
        const address = turnAddress(turn.id);
        const id = html`<${ShortText} value=${turn.id} limit=${24} />`;
        return html`<tr key=${turn.id}>
        <th scope="row">${address === null ? id : html`<a href=${address}>${id}</a>`}</th>
        <td><${ShortText} value=${turn.api} /></td>
        <td><${ShortText} value=${turn.model} limit=${40} /></td>
        <td><${ShortText} value=${turn.stage} /></td>
        <td>${formatCount(turn.input)} (${formatCount(turn.cached)})</td>
        <td>${formatCount(turn.output)}</td>
        <td>${formatSeconds(turn.seconds)}</td>
        <td>${formatRate(turn.rate)}</td>
        <td>${turn.background ? html`<button type="button" onClick=${() => cancel(turn.id)}>Cancel</button>` : "–"}</td>
      </tr>`;
      })} />`
    }`;
}

/** @param {{engines: LiveFrame["engines"]}} props */
function Engines({ engines }) {
  const names = ["model", "running of slots", "waiting", "tokens a second", "prompts cached", "tokens held", "figures"];
  return html`<${Table} caption="Engines" names=${names} rows=${engines.map(
    (engine) => html`<tr key=${engine.model}>
      <th scope="row"><${ShortText} value=${engine.model} limit=${40} /></th>
      <td>${formatCount(engine.running)} of ${formatCount(engine.slots)}</td>
      <td>${formatCount(engine.waiting)}</td>
      <td>${formatRate(engine.rate)}</td>
      <td>${engine.hits === null ? "–" : `${Math.round(100 * engine.hits)} %`}</td>
      <td>${formatCount(engine.held)}</td>
      <td><${JsonTree} value=${engine.figures} /></td>
    </tr>`,
  )} />`;
}

/** @param {{processes: LiveFrame["processes"]}} props */
function Processes({ processes }) {
  return html`<${Table} caption="Processes" names=${["process", "name", "memory"]} rows=${processes.map(
    (each) => html`<tr key=${each.pid}><th scope="row"><${ShortText} value=${each.pid} /></th>
      <td><${ShortText} value=${each.name} /></td><td>${formatBytes(each.bytes)}</td></tr>`,
  )} />`;
}

/** @param {{caption: string, names: string[], rows: unknown}} props */
function Table({ caption, names, rows }) {
  return html`<div class="wide"><table class="turns"><caption>${caption}</caption>
    <thead><tr>${names.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead><tbody>${rows}</tbody></table></div>`;
}

/** A curve, a second a pixel. Its label says the last and the highest value. @param {{values: number[], label: string, format: (value: number) => string}} props */
function Sparkline({ values, label, format }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const most = Math.max(0, ...values);
  useLayoutEffect(() => {
    const pen = canvas.current?.getContext("2d");
    if (!pen) return;
    pen.clearRect(0, 0, WIDTH, HEIGHT);
    pen.strokeStyle = getComputedStyle(pen.canvas).color;
    pen.beginPath();
    for (const [i, value] of values.entries())
      pen.lineTo(WIDTH - values.length + i, HEIGHT - 1 - (value / (most || 1)) * (HEIGHT - 2));
    pen.stroke();
  });
  return html`<canvas ref=${canvas} class="sparkline" width=${WIDTH} height=${HEIGHT} role="img"
    aria-label=${`${label}, ${values.length} s: now ${format(values.at(-1) ?? 0)}, at most ${format(most)}`}></canvas>`;
}
