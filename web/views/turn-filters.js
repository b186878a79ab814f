// Filters of the list of turns. They are part of the address, so a filtered list can be linked to.
import { html } from "../lib/html.js";
import { APIS, CAUSES, STATUSES } from "../lib/turns.js";

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

/** Returns the filters of the address. @returns {Record<string, string>} */
export function readFilters() {
  const fields = new URLSearchParams(location.search);
  return Object.fromEntries(NAMES.map((name) => [name, fields.get(name) ?? ""]));
}

/** @param {{filters: Record<string, string>, onChange: (filters: Record<string, string>) => void}} props */
export function Filters({ filters, onChange }) {
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
