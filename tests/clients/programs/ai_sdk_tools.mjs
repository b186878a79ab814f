// The client tools of the Vercel AI SDK. The task is that of agents_tools.py, with the tool choices of each step by the name
// of the prompt, and so are the results.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { spawnSync } from "node:child_process";

const task = JSON.parse(process.argv[2]);
const openai = createOpenAI({ baseURL: task.url, apiKey: "none" });
globalThis.AI_SDK_LOG_WARNINGS = false; // they would stand among the results

function runCommand(command) {
  const done = spawnSync(command, { shell: true, encoding: "utf-8" });
  return { stdout: done.stdout, stderr: done.stderr, outcome: { type: "exit", exitCode: done.status } };
}

const shell = openai.tools.shell({ execute: async ({ action }) => ({ output: action.commands.map(runCommand) }) });
const shellWithSkills = openai.tools.shell({
  environment: { type: "local", skills: [{ name: "notes", description: "Keeps notes.", path: "skills/notes" }] },
  execute: async ({ action }) => ({ output: action.commands.map(runCommand) }),
});
const applyPatch = openai.tools.applyPatch({
  execute: async ({ operation }) => ({ status: "completed", output: `edited ${operation.path}` }),
});
const localShell = openai.tools.localShell({
  execute: async ({ action }) => ({ output: runCommand(action.command.join(" ")).stdout }),
});
const CITY = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const WEATHER = { type: "function", name: "get_weather", description: "Tells the weather.", parameters: CITY };
const toolSearch = openai.tools.toolSearch({
  execution: "client",
  execute: async () => ({ tools: [{ ...WEATHER, defer_loading: true }] }),
});
const weather = tool({
  description: WEATHER.description,
  inputSchema: jsonSchema(CITY),
  providerOptions: { openai: { deferLoading: true } },
  execute: async ({ city }) => `rain in ${city}`,
});

async function runTurns(stream, tools, prompt, store, choices) {
  const options = {
    model: openai(task.model),
    prompt,
    tools,
    stopWhen: stepCountIs(3),
    prepareStep: ({ stepNumber }) => ({ toolChoice: choices?.[stepNumber] ?? "auto" }),
    maxRetries: 0,
    providerOptions: store === null ? {} : { openai: { store } },
  };
  if (!stream) return await generateText(options);
  let failure;
  const result = streamText({ ...options, onError: ({ error }) => (failure = error) });
  await result.consumeStream();
  if (failure) throw failure;
  return { steps: await result.steps, text: await result.text };
}

function describeRun({ steps, text }) {
  return {
    calls: steps.flatMap((step) => step.toolCalls.map(({ input }) => input.action ?? input.operation ?? input.arguments ?? input)),
    outputs: steps.flatMap((step) => step.toolResults.map(({ output }) => output)),
    text,
  };
}

const sets = {
  shell: { tools: { shell }, prompt: "shell" },
  local_shell_environment: { tools: { shell: shellWithSkills }, prompt: "shell" },
  apply_patch: { tools: { apply_patch: applyPatch }, prompt: "apply_patch" },
  local_shell: { tools: { local_shell: localShell }, prompt: "local_shell" },
  tool_search: { tools: { tool_search: toolSearch, get_weather: weather }, prompt: "tool_search" },
  cut: { tools: { shell }, prompt: "cut" },
};
const results = {};
for (const [name, { tools, prompt }] of Object.entries(sets)) {
  if (!(prompt in task.prompts)) continue;
  results[name] = {};
  for (const stream of [false, true]) {
    for (const store of [null, true, false]) {
      const key = `${stream ? "stream" : "run"}${store === null ? "" : `, store ${store ? "True" : "False"}`}`;
      try {
        results[name][key] = describeRun(await runTurns(stream, tools, task.prompts[prompt], store, task.choices?.[prompt]));
      } catch (error) {
        results[name][key] = { failure: String(error.stack ?? error).slice(0, 1500) };
      }
    }
  }
}
process.stdout.write(JSON.stringify(results));
