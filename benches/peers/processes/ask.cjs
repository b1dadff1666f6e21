// rate-limiter-flexible over ioredis, as rate_limiter_flexible.rs tells. Orders and answers are those of Ask.java; the
// arguments are those, behind MODE: `plain`, or `blocks` for refusals that are answered in memory.
'use strict';

const { createInterface } = require('node:readline');
const { createRequire } = require('node:module');
const { join } = require('node:path');

// Beside this file there are no packages: they are where benches/peers.sh has installed them.
const packages = createRequire(join(process.env.PEERS_RATE_LIMITER_FLEXIBLE, 'package.json'));
const Redis = packages('ioredis');
const { RateLimiterRedis, RateLimiterUnion } = packages('rate-limiter-flexible');

const [mode, port, ...limits] = process.argv.slice(2);
const client = new Redis(Number(port), { enableOfflineQueue: false });
// It connects again by itself; a call that fails says so.
client.on('error', () => {});

const limiters = limits.map((limit, at) => {
  const [points, duration] = limit.split('/').map(Number);
  const blocks = mode === 'blocks' ? { inMemoryBlockOnConsumed: points } : {};
  return new RateLimiterRedis({ storeClient: client, points, duration, keyPrefix: `rlflx${at}`, ...blocks });
});
const limiter = limiters.length === 1 ? limiters[0] : new RateLimiterUnion(...limiters);

const [REFUSED, ADMITTED, FAILED] = [0, 1, 2];

// What a rejection says: an error, or how long to wait; of several limits, of each that refuses.
function rejected(said) {
  const all = limiters.length === 1 || said instanceof Error ? [said] : Object.values(said);
  if (all.some((one) => one instanceof Error)) return [FAILED, -1];
  return [REFUSED, Math.max(...all.map((one) => one.msBeforeNext)) * 1e6];
}

const decide = (user, cost) => limiter.consume(user, cost).then(() => [ADMITTED, -1], rejected);

const users = (prefix, count) =>
  Array.from({ length: Number(count) }, (_, at) => `${prefix}-${String(at).padStart(7, '0')}`);

const say = (line) => process.stdout.write(`${line}\n`);

async function closed(prefix, count, inFlight, millis, most, costs) {
  const [names, each] = [users(prefix, count), costs.split(',').map(Number)];
  const answers = [0, 0, 0];
  let place = 0;
  const began = performance.now();
  const end = began + Number(millis);
  const one = async () => {
    while (place < Number(most) && performance.now() < end) {
      const at = place++;
      const [answer] = await decide(names[at % names.length], each[at % each.length]);
      answers[answer] += 1;
    }
  };
  await Promise.all(Array.from({ length: Number(inFlight) }, one));
  const asked = answers[REFUSED] + answers[ADMITTED] + answers[FAILED];
  const nanos = Math.round((performance.now() - began) * 1e6);
  say(`${asked} ${answers[ADMITTED]} ${answers[FAILED]} ${nanos}`);
}

async function open(prefix, count, rate, millis) {
  const names = users(prefix, count);
  const calls = Math.floor((Number(rate) * Number(millis)) / 1000);
  const took = new Float64Array(calls).fill(4e6);
  let [at, answered, due] = [0, 0, performance.now()];
  const next = () => {
    due += (-Math.log(1 - Math.random()) / Number(rate)) * 1000;
  };
  next();
  await new Promise((done) => {
    const turn = () => {
      for (; at < calls && performance.now() >= due; next()) {
        const [place, began] = [at++, due];
        decide(names[Math.floor(Math.random() * names.length)], 1).then(() => {
          took[place] = (performance.now() - began) * 1000;
          answered += 1;
        });
      }
      const late = performance.now() > due + 4000;
      if (at === calls && (answered === calls || late)) done();
      // A timer has whole milliseconds: the loop goes round until the next call is due.
      else setImmediate(turn);
    };
    turn();
  });
  const sorted = took.slice().sort();
  say([0.5, 0.99, 0.999].map((part) => sorted[Math.floor(calls * part)].toFixed(1)).join(' '));
}

client.once('ready', () => {
  const version = (name) => packages(`${name}/package.json`).version;
  say(`${version('rate-limiter-flexible')} with ioredis ${version('ioredis')}`);
  const orders = createInterface({ input: process.stdin });
  orders.on('line', (line) => {
    const [order, ...words] = line.split(' ');
    if (order === 'closed') closed(...words);
    else if (order === 'open') open(...words);
    else decide(words[1], Number(words[2])).then(([answer, wait]) => say(`= ${words[0]} ${answer} ${wait}`));
  });
  orders.on('close', () => process.exit(0));
});
