// Lines that connect clients to this server, with its real address. They never hold the key of this tab.

/** @typedef {{name: string, text: string, note: string}} ClientLines */

/**
 * Returns the lines for each client.
 * @param {{apiUrl: string, rootUrl: string, model: string}} server
 * @returns {ClientLines[]}
 */
export function writeClientLines({ apiUrl, rootUrl, model }) {
  const keyNote = "YOUR_KEY: a key of this server; any word if it requires none.";
  const name = JSON.stringify(model);
  return [
    {
      name: "curl",
      note: "Add -H 'Authorization: Bearer YOUR_KEY' if the server requires a key.",
      text:
        `curl -N ${quoteShell(`${apiUrl}/responses`)} -H 'Content-Type: application/json' \\\n` +
        `  -d ${quoteShell(JSON.stringify({ model, input: "Hello!", stream: true }))}`,
    },
    {
      name: "Python",
      note: `pip install openai. ${keyNote}`,
      text:
        `from openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(apiUrl)}, api_key="YOUR_KEY")\n` +
        `print(client.responses.create(model=${name}, input="Hello!").output_text)`,
    },
    {
      name: "Node",
      note: `npm install openai. ${keyNote}`,
      text:
        `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: ${JSON.stringify(apiUrl)}, apiKey: "YOUR_KEY" });\n` +
        `const response = await client.responses.create({ model: ${name}, input: "Hello!" });\nconsole.log(response.output_text);`,
    },
    {
      name: "Codex",
      note: 'At the top of ~/.codex/config.toml. With a key, add env_key = "ANTIPHON_API_KEY" as the last line.',
      text:
        `model = ${name}\nmodel_provider = "antiphon"\n\n[model_providers.antiphon]\nname = "Antiphon"\n` +
        `base_url = ${JSON.stringify(apiUrl)}\nwire_api = "responses"`,
    },
    {
      name: "Claude Code",
      note: keyNote,
      text:
        `ANTHROPIC_BASE_URL=${quoteShell(rootUrl)} ANTHROPIC_MODEL=${quoteShell(model)} \\\n` +
        `  ANTHROPIC_DEFAULT_HAIKU_MODEL=${quoteShell(model)} ANTHROPIC_API_KEY=YOUR_KEY claude`,
    },
  ];
}

/** Returns a word that a shell passes on as it is: the name of a model may hold anything. @type {(text: string) => string} */
export function quoteShell(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
