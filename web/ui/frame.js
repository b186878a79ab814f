// What surrounds every view: the name, the links, the state of the server, and the field for the key.
import { START_ADDRESS, viewAddress } from "../lib/addresses.js";
import { fetchJson } from "../lib/api.js";
import { html } from "../lib/html.js";
import { changeKey, keyRefused } from "../lib/session.js";
import { useState } from "../vendor/hooks.js";
import { useLoaded, useSignal } from "./hooks.js";
import { ShortText } from "./text.js";

/** @param {{current: string, children?: unknown}} props */
export function Frame({ current, children }) {
  const needsKey = useSignal(keyRefused);
  return html`<a class="skip" href="#content">Skip to the content</a>
    <header>
      <strong>antiphon</strong>
      <${ServerState} />
      <nav aria-label="Views">
        <${NavLink} href=${START_ADDRESS} name="Start" current=${current} />
        <${NavLink} href=${viewAddress("turns")} name="Turns" current=${current} />
        <${NavLink} href=${viewAddress("live")} name="Live" current=${current} />
        <${NavLink} href=${viewAddress("play")} name="Play" current=${current} />
      </nav>
    </header>
    <main id="content" tabindex="-1">${needsKey && html`<${KeyForm} />`}${children}</main>`;
}

/** @param {{href: string, name: string, current: string}} props */
function NavLink({ href, name, current }) {
  return html`<a href=${href} aria-current=${name === current ? "page" : null}>${name}</a>`;
}

function ServerState() {
  const { value, failure } = useLoaded((signal) => fetchJson("ready", signal), []);
  if (failure !== null)
    return html`<span class="state bad">■ ${failure.status === 0 ? "no answer" : "not ready"}</span>`;
  return html`<span class="state good">${value === null ? "…" : "● ready"}</span>`;
}

function KeyForm() {
  /** @param {SubmitEvent} event */
  const submit = (event) => {
    event.preventDefault();
    const field = /** @type {HTMLFormElement} */ (event.currentTarget).elements.namedItem("key");
    if (field instanceof HTMLInputElement) changeKey(field.value);
  };
  return html`<form class="key" onSubmit=${submit}>
    <label>A key is needed: an API key of this server, or the page key that it printed at its start. It is kept for this tab only.
      <input name="key" type="password" autocomplete="off" required spellcheck=${false} />
    </label>
    <button type="submit">Use this key</button>
  </form>`;
}

/** Shows why something could not be loaded. @param {{failure: Fault}} props */
export function Failure({ failure }) {
  return failure && html`<p class="failure" role="alert">■ <${ShortText} value=${failure.message} limit=${500} /></p>`;
}

/** Shortcuts of a single key can be switched off: speech input types letters (WCAG 2.1.4). The choice lasts for the tab. */
const STORAGE_NAME = "antiphon.shortcuts";

export function shortcutsOn() {
  return sessionStorage.getItem(STORAGE_NAME) !== "off";
}

export function ShortcutSwitch() {
  const [on, setOn] = useState(shortcutsOn());
  const change = () => {
    sessionStorage.setItem(STORAGE_NAME, on ? "off" : "on");
    setOn(!on);
  };
  return html`<label><input type="checkbox" checked=${on} onChange=${change} /> single-key shortcuts</label>`;
}
