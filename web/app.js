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
  switch (route.name) {
    case "turns":
      return { name: "Turns", view: html`<${(await import("./views/turns.js")).Turns} />` };
    case "turn":
      return { name: "", view: html`<${(await import("./views/turn.js")).Turn} id=${route.id} />` };
    case "live":
      return { name: "Live", view: html`<${(await import("./views/live.js")).Live} />` };
    case "compare":
      return { name: "", view: html`<${(await import("./views/compare.js")).Compare} />` };
    case "play":
      return { name: "Play", view: html`<${(await import("./views/play.js")).Play} />` };
    default:
      return { name: "Start", view: html`<${Start} />` };
  }
}

watchAddress();
const { name, view } = await chooseView();
render(html`<${Frame} current=${name}>${view}<//>`, document.body);
