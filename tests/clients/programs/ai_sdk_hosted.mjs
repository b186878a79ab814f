// The Vercel AI SDK with tools that the server runs. The task and the results are those of agents_hosted.py, with
// `server_url`, the URL of the tool server: the SDK requires it.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";

const task = JSON.parse(process.argv[2]);
const openai = createOpenAI({ baseURL: task.url, apiKey: "none" });
globalThis.AI_SDK_LOG_WARNINGS = false; // they would stand among the results

async function generate(stream, options) {
  if (!stream) return await generateText(options);
  let failure;
  const result = streamText({ ...options, onError: ({ error }) => (failure = error) });
  await result.consumeStream();
  if (failure) throw failure;
  return { content: await result.content, text: await result.text, response: await result.response };
}

async function runTurns(answer, stream, store) {
  const requireApproval = answer === "not asked" ? "never" : "always";
  const tools = { mcp: openai.tools.mcp({ serverLabel: task.label, serverUrl: task.server_url, requireApproval }) };
  const options = { model: openai(task.model), tools, maxRetries: 0, providerOptions: store === null ? {} : { openai: { store } } };
  const messages = [{ role: "user", content: task.prompt }];
  const asked = [];
  const kinds = [];
  let result;
  for (let turn = 0; turn < 3; turn++) {
    result = await generate(stream, { ...options, messages });
    messages.push(...result.response.messages);
    kinds.push(...result.content.map(({ type }) => type));
    const requests = result.content.filter(({ type }) => type === "tool-approval-request");
    if (!requests.length) break;
    asked.push(...requests.map(({ toolCall }) => [toolCall.toolName, toolCall.input]));
    const responses = requests.map(({ approvalId }) => ({ type: "tool-approval-response", approvalId, approved: answer === "yes", providerExecuted: true }));
    messages.push({ role: "tool", content: responses });
  }
  const outputs = result.content.filter(({ type }) => type === "tool-result").map(({ output }) => output.output);
  messages.push({ role: "user", content: "Say it again." });
  const again = answer === "no" ? null : (await generate(stream, { ...options, messages })).text;
  return { asked, kinds, outputs, text: result.text, again };
}

const results = {};
for (const answer of ["not asked", "yes", "no"]) {
  results[answer] = {};
  for (const stream of [false, true]) {
    for (const store of [null, true, false]) {
      const key = `${stream ? "stream" : "run"}${store === null ? "" : `, store ${store ? "True" : "False"}`}`;
      try {
        results[answer][key] = await runTurns(answer, stream, store);
      } catch (error) {
        results[answer][key] = { failure: String(error.responseBody ?? error.stack ?? error).slice(0, 1500) };
      }
    }
  }
}
process.stdout.write(JSON.stringify(results));
