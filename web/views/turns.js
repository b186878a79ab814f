// The list of turns, newest first, with filters.
import { turnAddress, viewAddress } from "../lib/addresses.js";
import { fetchJson } from "../lib/api.js";
import { html } from "../lib/html.js";
import {
  APIS,
  CAUSES,
  describeEnding,
  formatCount,
  formatSeconds,
  listQuery,
  readTurn,
  STATUSES,
} from "../lib/turns.js";
import { Failure, ShortcutSwitch, shortcutsOn } from "../ui/frame.js";
import { toFailure, useLoaded } from "../ui/hooks.js";
import { ShortText } from "../ui/text.js";
import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";

/** Time between two readings of a live list, in milliseconds. */
const LIVE_MS = 2000;
/** Filters are part of the address, so that a filtered list can be linked to. */
const NAMES = Object.freeze(["status", "api", "ending", "model", "tool", "since"]);
/** @type {Record<string, readonly string[]>} */
const CHOICES = { status: STATUSES, api: APIS, ending: CAUSES };
/** @type {[string, number][]} */
const PERIODS = [
  ["any time", 0],
  ["10 minutes", 600],
  ["1 hour", 3600],
  ["1 day", 86_400],
  ["1 week", 604_800],
];

export function Turns() {
  const [filters, setFilters] = useState(readFilters());
  const [live, setLive] = useState(false);
  const [round, setRound] = useState(0);
  const { value, failure } = useLoaded(
    (signal) => fetchJson(`v1/inspect/turns?${listQuery(filters, "")}`, signal),
    [filters, round],
  );
  useEffect(() => {
    if (!live) return;
    const timer = setInterval(() => setRound((n) => n + 1), LIVE_MS);
    return () => clearInterval(timer);
  }, [live]);
  return html`<h1>Turns</h1>
    <${Filters} filters=${filters} onChange=${setFilters} />
    <p class="switches">
      <label><input type="checkbox" checked=${live} onChange=${() => setLive(!live)} /> live</label>
      <${ShortcutSwitch} />
    </p>
    <${Failure} failure=${failure} />
    ${value !== null && html`<${TurnList} first=${value} filters=${filters} />`}`;
}

/** @param {{first: any, filters: Record<string, string>}} props */
function TurnList({ first, filters }) {
  const [more, setMore] = useState(/** @type {any[]} */ ([]));
  const [failure, setFailure] = useState(/** @type {Fault} */ (null));
  const body = useRef(/** @type {HTMLElement | null} */ (null));
  const [marked, setMarked] = useState(/** @type {string[]} */ ([]));
  const mark = (/** @type {string} */ id) =>
    setMarked(marked.includes(id) ? marked.filter((each) => each !== id) : [...marked.slice(-1), id]);
  useEffect(() => setMore([]), [filters]);
  const pages = [first, ...more];
  const turns = pages.flatMap((page) => (Array.isArray(page?.data) ? page.data : [])).map(readTurn);
  const last = pages.at(-1);

  const loadMore = async () => {
    try {
      const page = await fetchJson(
        `v1/inspect/turns?${listQuery(filters, turns.at(-1)?.id ?? "")}`,
        new AbortController().signal,
      );
      setMore([...more, page]);
    } catch (error) {
      setFailure(toFailure(error));
    }
  };

  useShortcuts(body);
  if (turns.length === 0) return html`<p>No turn fits. Turns appear here once a client has sent a request.</p>`;
  return html`<div class="wide">
      <table class="turns">
        <caption class="unseen">Turns, newest first</caption>
        <thead><tr>${[
          "time",
          "id",
          "api",
          "model",
          "ending",
          "in (cached)",
          "out",
          "time taken",
          "tools",
          "asked",
          "compare",
        ].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody ref=${body}>${turns.map((turn) => html`<${TurnRow} key=${turn.id} turn=${turn} marked=${marked.includes(turn.id)} onMark=${mark} />`)}</tbody>
      </table>
    </div>
    ${marked.length === 2 && html`<p><a href=${viewAddress("compare", { a: marked[0] ?? "", b: marked[1] ?? "" })}>Compare the two marked turns</a></p>`}
    <${Failure} failure=${failure} />
    ${last?.["has_more"] === true && html`<button type="button" onClick=${loadMore}>More</button>`}`;
}

/** @param {{turn: Turn, marked: boolean, onMark: (id: string) => void}} props */
function TurnRow({ turn, marked, onMark }) {
  const ending = describeEnding(turn);
  const address = turnAddress(turn.id);
  const link = (/** @type {string} */ value, /** @type {number} */ limit, tabIndex = 0) => {
    const shown = html`<${ShortText} value=${value} limit=${limit} />`;
    return address === null ? shown : html`<a href=${address} tabIndex=${tabIndex}>${shown}</a>`;
  };
  return html`<tr>
    <td>${turn.at === null ? "–" : html`<time dateTime=${turn.at.toISOString()}>${turn.at.toLocaleTimeString("en-GB")}</time>`}</td>
    <th scope="row">${link(turn.id, 24)}</th>
    <td><${ShortText} value=${turn.api} /></td>
    <td><${ShortText} value=${turn.model} limit=${40} /></td>
    <td class=${ending.kind}>${ending.sign} <${ShortText} value=${ending.words} /></td>
    <td class="number">${formatCount(turn.input)} (${formatCount(turn.cached)})</td>
    <td class="number">${formatCount(turn.output)}</td>
    <td class="number">${formatSeconds(turn.seconds)}</td>
    <td><${ShortText} value=${turn.tools.join(", ") || "–"} limit=${40} /></td>
    <td>${turn.excerpt ? link(turn.excerpt, 80, -1) : "–"}</td>
    <td>${address !== null && html`<input type="checkbox" aria-label=${`Compare ${turn.id}`} checked=${marked} onChange=${() => onMark(turn.id)} />`}</td>
  </tr>`;
}

/**
 * Moves through the rows with the arrow keys, and to the filters with `/`; `c` marks a row. Enter on the link of a row
 * opens its turn.
 * @param {{current: HTMLElement | null}} body
 */
function useShortcuts(body) {
  useLayoutEffect(() => {
    /** @param {KeyboardEvent} event */
    const onKey = (event) => {
      if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step !== undefined) {
        const links = [...(body.current?.querySelectorAll("a") ?? [])];
        const current = links.indexOf(/** @type {HTMLAnchorElement} */ (document.activeElement));
        links[current < 0 ? 0 : Math.min(links.length - 1, Math.max(0, current + step))]?.focus();
        event.preventDefault();
      } else if (event.key === "c" && shortcutsOn()) {
        document.activeElement?.closest("tr")?.querySelector("input")?.click();
      } else if (event.key === "/" && shortcutsOn()) {
        /** @type {HTMLElement | null} */ (document.querySelector("form.filters select"))?.focus();
        event.preventDefault();
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

/** @type {(event: KeyboardEvent) => boolean} */
function isTyping(event) {
  return event.target instanceof HTMLElement && event.target.matches("input, select, textarea");
}

/** Returns the filters of the address. @returns {Record<string, string>} */
function readFilters() {
  const fields = new URLSearchParams(location.search);
  return Object.fromEntries(NAMES.map((name) => [name, fields.get(name) ?? ""]));
}

/** @param {{filters: Record<string, string>, onChange: (filters: Record<string, string>) => void}} props */
function Filters({ filters, onChange }) {
  /** @param {string} name @param {string} value */
  const change = (name, value) => {
    const next = { ...filters, [name]: value };
    const query = new URLSearchParams(Object.entries(next).filter(([, text]) => text !== "")).toString();
    history.replaceState(null, "", location.pathname + (query === "" ? "" : `?${query}`));
    onChange(next);
  };
  return html`<form class="filters" role="search" aria-label="Filter turns" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    ${Object.entries(CHOICES).map(
      ([name, choices]) => html`<label>${name}
        <select value=${filters[name]} onChange=${(/** @type {any} */ event) => change(name, event.currentTarget.value)}>
          <option value="">any</option>
          ${choices.map((choice) => html`<option value=${choice}>${choice.replaceAll("_", " ")}</option>`)}
        </select></label>`,
    )}
    ${["model", "tool"].map(
      (name) => html`<label>${name}
        <input value=${filters[name]} spellcheck=${false} onChange=${(/** @type {any} */ event) => change(name, event.currentTarget.value.trim())} /></label>`,
    )}
    <label>since
      <select value=${filters["since"] === "" ? "0" : ""} onChange=${(/** @type {any} */ event) => change("since", sinceTime(Number(event.currentTarget.value)))}>
        ${filters["since"] !== "" && html`<option value="">chosen time</option>`}
        ${PERIODS.map(([name, seconds]) => html`<option value=${String(seconds)}>${name}</option>`)}
      </select></label>
  </form>`;
}

/** Returns the time that lies so many seconds back, in seconds since 1970. @type {(seconds: number) => string} */
function sinceTime(seconds) {
  return seconds === 0 ? "" : String(Math.floor(Date.now() / 1000) - seconds);
}
