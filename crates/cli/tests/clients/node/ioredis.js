// What an application does with ioredis, against the server at HOST and PORT.
//
//   node ioredis.js HOST PORT
//
// The program prints a line for each run that succeeds, and ends with an error at the first wrong reply.
'use strict';

const { assert, host, port, RATE_LIMIT, RELEASE, everyByte, equal, rejects, sleep, main } = require('./checks.js');
const { Redis, ReplyError } = require('ioredis');
const { version } = require('ioredis/package.json');

function connect(protocol, more = {}) {
  const client = new Redis({
    host,
    port,
    protocol,
    retryStrategy: () => 5,
    scripts: { limit: { numberOfKeys: 1, lua: RATE_LIMIT }, release: { numberOfKeys: 1, lua: RELEASE } },
    ...more,
  });
  // Without a listener, the library prints each error of a connection.
  client.on('error', () => {});
  return client;
}

async function connection(client, protocol) {
  const fields = Object.fromEntries((await client.client('INFO')).trim().split(' ').map((field) => field.split('=')));
  equal(fields.resp, String(protocol), 'HELLO');
  equal([fields['lib-name'], fields['lib-ver']], ['ioredis', version], 'CLIENT SETINFO');
  equal(await client.ping(), 'PONG', 'PING');
  assert.ok((await client.info('server')).includes('redis_mode:standalone'), 'INFO');
  equal((await client.config('GET', 'maxmemory'))[0], 'maxmemory', 'CONFIG GET');
}

async function values(client) {
  equal(await client.get('missing'), null, 'GET of no key');
  equal(await client.set('k', 'v'), 'OK', 'SET');
  equal(await client.set('k', 'other', 'NX'), null, 'SET NX of a key');
  equal(await client.set('no', 'other', 'XX'), null, 'SET XX of no key');
  equal(await client.set('k', 'w', 'XX', 'GET'), 'v', 'SET XX GET');
  equal(await client.set('k', 'w', 'EX', 100), 'OK', 'SET EX');
  assert.ok((await client.ttl('k')) > 90, 'TTL');
  equal(await client.set('k', 'x', 'KEEPTTL'), 'OK', 'SET KEEPTTL');
  assert.ok((await client.pttl('k')) > 90_000, 'PTTL');
  equal([await client.persist('k'), await client.expire('k', 50, 'NX')], [1, 1], 'PERSIST and EXPIRE NX');
  equal(await client.getex('k', 'PX', 20), 'x', 'GETEX PX');
  await sleep(50);
  equal(await client.exists('k'), 0, 'a key after its expiry');
  equal(await client.mset({ a: 1, b: 2.5 }), 'OK', 'MSET of an object');
  equal(await client.mset(new Map([['c', '3']])), 'OK', 'MSET of a map');
  equal(await client.mget('a', 'b', 'c', 'missing'), ['1', '2.5', '3', null], 'MGET');
  equal(await client.msetnx('a', 9, 'new', 9), 0, 'MSETNX');
  equal([await client.incr('a'), await client.incrby('a', 40), await client.decr('a')], [2, 42, 41], 'counters');
  equal(await client.incrbyfloat('b', 0.25), '2.75', 'INCRBYFLOAT');
  equal([await client.append('a', '!'), await client.getrange('a', 0, 0), await client.strlen('a')], [3, '4', 3], 'ranges');
  equal([await client.getdel('a'), await client.del('a', 'b')], ['41!', 1], 'GETDEL and DEL');
  await client.set(everyByte(255), everyByte(65_536));
  equal(await client.getBuffer(everyByte(255)), everyByte(65_536), '65,536 bytes of all values');
  await client.set('text', 'naïve ☃ 𝄞');
  equal(await client.get('text'), 'naïve ☃ 𝄞', 'text');
}

async function errors(client) {
  await client.set('word', 'abc');
  await rejects(ReplyError, client.incr('word'), 'not an integer');
  await rejects(ReplyError, client.call('NO-SUCH', 'x'), 'unknown command');
  await rejects(ReplyError, client.set('word', 'x'.repeat(65_537)));
  equal(await client.get('word'), 'abc', 'the connection after errors');
}

async function pipelines(client, protocol) {
  const numbers = Array.from({ length: 2000 }, (_, i) => i);
  const sets = client.pipeline();
  numbers.forEach((i) => sets.set(`p:${i}`, i, 'EX', 1000));
  assert.ok((await sets.exec()).every(([error, reply]) => error === null && reply === 'OK'), 'a pipeline of SETs');
  const gets = client.pipeline(numbers.map((i) => ['get', `p:${i}`]));
  equal(await gets.exec(), numbers.map((i) => [null, String(i)]), 'a pipeline of GETs');
  const [[, set], [error], [, text]] = await client.pipeline().set('q', 'text').incr('q').get('q').exec();
  assert.ok(error instanceof ReplyError, 'an error in a pipeline');
  equal([set, text], ['OK', 'text'], 'the replies around an error in a pipeline');
  const automatic = connect(protocol, { enableAutoPipelining: true });
  equal(await Promise.all(numbers.map((i) => automatic.get(`p:${i}`))), numbers.map(String), 'automatic pipelines');
  await automatic.quit();
  const found = new Set();
  for await (const keys of client.scanStream({ match: 'p:*', count: 100 })) {
    keys.forEach((key) => found.add(key));
  }
  equal(found.size, 2000, 'scanStream');
}

async function transactions(client, other) {
  const replies = await client.multi().set('t', 1).incr('t').get('t').exec();
  equal(replies, [[null, 'OK'], [null, 2], [null, '2']], 'MULTI and EXEC');
  const [[first], [second]] = await client.multi().set('t', 'x').incr('t').exec();
  assert.ok(first === null && second instanceof ReplyError, 'an error of one command of a transaction');
  await rejects(ReplyError, client.multi().set('t', 1).call('GET').exec(), 'EXECABORT');
  equal(await client.get('t'), 'x', 'a transaction with a refused command');
  await client.multi({ pipeline: false });
  equal(await client.set('t', 4), 'QUEUED', 'a command of a transaction without a pipeline');
  equal(await client.exec(), [[null, 'OK']], 'EXEC of a transaction without a pipeline');
  await client.watch('t');
  await other.set('t', 5);
  equal(await client.multi().set('t', 6).exec(), null, 'a watched key that has changed');
  await client.watch('t');
  equal(await client.multi().incr('t').exec(), [[null, 6]], 'a watched key that has not changed');
}

async function scripts(client) {
  await client.script('FLUSH');
  const calls = [];
  for (let i = 0; i < 5; i++) calls.push(await client.limit('rate', 60_000, 3));
  equal(calls, [1, 1, 1, null, null], 'a rate limiter');
  await client.script('FLUSH');
  equal(await client.pipeline().limit('rate', 60_000, 9).exec(), [[null, 1]], 'a script in a pipeline that loads it');
  await client.script('FLUSH');
  await rejects(ReplyError, client.evalsha('f'.repeat(40), 0), 'NOSCRIPT');
  equal(await client.eval("return {1, 'two', {KEYS[1], ARGV[1]}}", 1, 'k', 'x'), [1, 'two', ['k', 'x']], 'EVAL');
  equal(await client.set('lock', 'me', 'PX', 10_000, 'NX'), 'OK', 'a lock');
  equal([await client.release('lock', 'other'), await client.release('lock', 'me')], [0, 1], 'the release of a lock');
}

async function reconnection(client, other) {
  const before = await client.client('ID');
  const again = new Promise((resolve) => client.once('ready', resolve));
  equal(await other.client('KILL', 'ID', before), 1, 'CLIENT KILL');
  equal(await client.incr('reconnected'), 1, 'a command after the server closed the connection');
  await again;
  assert.ok((await client.client('ID')) !== before, 'another connection');
}

async function authentication(client, protocol) {
  const once = { retryStrategy: null, lazyConnect: true };
  await client.config('SET', 'requirepass', 'secret');
  try {
    const [wrong, none] = [connect(protocol, { password: 'wrong', ...once }), connect(protocol, once)];
    await rejects(ReplyError, wrong.get('k'), 'WRONGPASS');
    await rejects(ReplyError, none.get('k'), 'NOAUTH');
    const accepted = connect(protocol, { username: 'default', password: 'secret', keyPrefix: 'prefix:' });
    equal([await accepted.set('k', 1), await accepted.get('k')], ['OK', '1'], 'a password');
    equal(await client.exists('prefix:k', 'prefix:l'), 1, 'a prefix of keys');
    [wrong, none, accepted].forEach((other) => other.disconnect());
  } finally {
    await client.config('SET', 'requirepass', '');
  }
}

main(async () => {
  for (const protocol of [2, 3]) {
    const [client, other] = [connect(protocol), connect(protocol)];
    await client.flushall();
    await connection(client, protocol);
    await values(client);
    await errors(client);
    await pipelines(client, protocol);
    await transactions(client, other);
    await scripts(client);
    await reconnection(client, other);
    await authentication(client, protocol);
    await Promise.all([client.quit(), other.quit()]);
    console.log(`ioredis ${version} RESP${protocol}`);
  }
});
