// Starts the page: shows the view that the path names.
import { html } from "./lib/html.js";
import { render } from "./vendor/preact.js";

render(html`<main><h1>antiphon</h1></main>`, document.body);
