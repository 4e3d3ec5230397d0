// Two turns of the openai package's runTools; prints what was sent and heard in each request, as JSON.
// node run_tools.mjs BASE_URL streamed|folded QUESTION…
import OpenAI from 'openai';

const [baseURL, kind, ...questions] = process.argv.slice(2);
const requests = [];

async function noted(url, init) {
  const response = await fetch(url, init);
  requests.push({
    sent: JSON.parse(init.body).messages,
    status: response.status,
    thinking: response.headers.get('x-kimi-thinking'),
    answer: await response.clone().text(),
  });
  return response;
}

const client = new OpenAI({ apiKey: 'any', baseURL, maxRetries: 0, fetch: noted });
const getWeather = {
  name: 'get_weather',
  description: 'Get the weather',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  parse: JSON.parse,
  function: ({ city }) => `18 C in ${city}`,
};

let messages = [];
for (const question of questions) {
  const runner = client.chat.completions.runTools({
    model: 'kimi-k3.1-pro',
    messages: [...messages, { role: 'user', content: question }],
    tools: [{ type: 'function', function: getWeather }],
    stream: kind === 'streamed',
  });
  await runner.finalContent();
  messages = runner.messages;
}
console.log(JSON.stringify(requests));
