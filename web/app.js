// Starts the page: shows the view that the path names. Views other than the first are fetched when they are needed.
import { readRoute } from "./lib/addresses.js";
import { html } from "./lib/html.js";
import { watchAddress } from "./lib/session.js";
import { Frame } from "./ui/frame.js";
import { render } from "./vendor/preact.js";
import { Start } from "./views/start.js";

/** @typedef {{name: string, view: unknown}} Shown */

/** @returns {Promise<Shown>} */
async function chooseView() {
  const route = readRoute(location.pathname);
  if (route.name === "start") return { name: "Start", view: html`<${Start} />` };
  if (route.name === "turns") {
    const { Turns } = await import("./views/turns.js");
    return { name: "Turns", view: html`<${Turns} />` };
  }
  if (route.name === "turn") {
    const { Turn } = await import("./views/turn.js");
    return { name: "", view: html`<${Turn} id=${route.id} />` };
  }
  return { name: "", view: html`<h1>Not here</h1><p>There is no such view.</p>` };
}

watchAddress();
const { name, view } = await chooseView();
render(html`<${Frame} current=${name}>${view}<//>`, document.body);
