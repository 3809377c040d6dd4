// What an application does with Jedis, against the server at HOST and PORT.
//
//   java JedisSmoke HOST PORT
//
// The program prints a line for each run that succeeds, and ends with an exception at the first wrong reply.

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import redis.clients.jedis.AbstractPipeline;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.ScanIteration;
import redis.clients.jedis.args.ExpiryOption;
import redis.clients.jedis.exceptions.JedisAccessControlException;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisNoScriptException;
import redis.clients.jedis.params.ClientKillParams;
import redis.clients.jedis.params.GetExParams;
import redis.clients.jedis.params.SetParams;

public final class JedisSmoke {
  private static final String VERSION = version();

  private final HostAndPort address;
  private final RedisProtocol protocol;

  private JedisSmoke(HostAndPort address, RedisProtocol protocol) {
    this.address = address;
    this.protocol = protocol;
  }

  public static void main(String[] arguments) throws Exception {
    HostAndPort address = new HostAndPort(arguments[0], Integer.parseInt(arguments[1]));
    for (RedisProtocol protocol : new RedisProtocol[] {RedisProtocol.RESP2, RedisProtocol.RESP3}) {
      JedisSmoke smoke = new JedisSmoke(address, protocol);
      try (RedisClient client = smoke.client(null, null)) {
        client.flushAll();
        smoke.connection(client);
        smoke.values(client);
        smoke.errors(client);
        smoke.pipelines(client);
        smoke.transactions(client);
        smoke.scripts(client);
        smoke.reconnection(client);
        smoke.authentication(client);
      }
      System.out.println("Jedis " + VERSION + " " + protocol);
    }
  }

  private static String version() {
    Properties properties = new Properties();
    try (InputStream file = Jedis.class.getResourceAsStream("pom.properties")) {
      properties.load(file);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return properties.getProperty("version");
  }

  private DefaultJedisClientConfig.Builder config() {
    return DefaultJedisClientConfig.builder().protocol(protocol);
  }

  /** A client with a pool of 4 connections. */
  private RedisClient client(String user, String password) {
    ConnectionPoolConfig pool = new ConnectionPoolConfig();
    pool.setMaxTotal(4);
    return RedisClient.builder()
        .hostAndPort(address)
        .clientConfig(config().user(user).password(password).build())
        .poolConfig(pool)
        .build();
  }

  private void connection(RedisClient client) throws Exception {
    try (Jedis jedis = new Jedis(address, config().clientName("named").build())) {
      String info = jedis.clientInfo();
      for (String field :
          new String[] {
            "name=named", "resp=" + protocol.version(), "lib-name=jedis", "lib-ver=" + VERSION
          }) {
        Checks.equal(info.contains(field), true, field + " in " + info);
      }
    }
    Checks.equal(client.ping(), "PONG", "PING");
    Checks.equal(client.info("server").contains("redis_mode:standalone"), true, "INFO");
    Checks.inThreads(12, 50, () -> client.incr("pooled"));
    Checks.equal(client.get("pooled"), "600", "12 threads with 4 connections");
  }

  private void values(RedisClient client) throws Exception {
    Checks.equal(client.get("missing"), null, "GET of no key");
    Checks.equal(client.set("k", "v"), "OK", "SET");
    Checks.equal(client.set("k", "other", new SetParams().nx()), null, "SET NX of a key");
    Checks.equal(client.set("no", "other", new SetParams().xx()), null, "SET XX of no key");
    Checks.equal(client.setGet("k", "w", new SetParams().xx()), "v", "SET XX GET");
    Checks.equal(client.set("k", "w", new SetParams().ex(100)), "OK", "SET EX");
    Checks.equal(client.ttl("k") > 90, true, "TTL");
    Checks.equal(client.set("k", "x", new SetParams().keepTtl()), "OK", "SET KEEPTTL");
    Checks.equal(client.pttl("k") > 90_000, true, "PTTL");
    Checks.equal(client.persist("k"), 1L, "PERSIST");
    Checks.equal(client.expire("k", 50, ExpiryOption.NX), 1L, "EXPIRE NX");
    Checks.equal(client.expire("k", 10, ExpiryOption.GT), 0L, "EXPIRE GT of a shorter one");
    Checks.equal(client.getEx("k", new GetExParams().px(20)), "x", "GETEX PX");
    Thread.sleep(50);
    Checks.equal(client.exists("k"), false, "a key after its expiry");
    Checks.equal(client.mset("a", "1", "b", "2.5"), "OK", "MSET");
    Checks.equal(client.mget("a", "b", "missing"), Arrays.asList("1", "2.5", null), "MGET");
    Checks.equal(client.msetnx("a", "9", "new", "9"), 0L, "MSETNX");
    Checks.equal(List.of(client.incr("a"), client.incrBy("a", 40), client.decr("a")), List.of(2L, 42L, 41L), "counters");
    Checks.equal(client.incrByFloat("b", 0.25), 2.75, "INCRBYFLOAT");
    Checks.equal(List.of(client.append("a", "!"), client.strlen("a")), List.of(3L, 3L), "APPEND and STRLEN");
    Checks.equal(client.getDel("a") + client.getrange("b", 0, 0), "41!2", "GETDEL and GETRANGE");
    Checks.equal(client.del("a", "b"), 1L, "DEL");
    client.set(Checks.everyByte(255), Checks.everyByte(65_536));
    Checks.equal(client.get(Checks.everyByte(255)), Checks.everyByte(65_536), "65,536 bytes of all values");
    client.set("text", "na\u00efve \u2603");
    Checks.equal(client.get("text"), "na\u00efve \u2603", "text");
  }

  private void errors(RedisClient client) {
    client.set("word", "abc");
    Checks.refused(JedisDataException.class, () -> client.incr("word"), "not an integer");
    CommandArguments unknown = new CommandArguments(() -> "NO-SUCH".getBytes(UTF_8));
    Checks.refused(JedisDataException.class, () -> client.executeCommand(unknown), "unknown command");
    Checks.refused(JedisDataException.class, () -> client.set("word", "x".repeat(65_537)), "ERR");
    Checks.equal(client.get("word"), "abc", "the connection after errors");
  }

  private void pipelines(RedisClient client) {
    List<Response<String>> replies = new ArrayList<>();
    try (AbstractPipeline pipeline = client.pipelined()) {
      for (int i = 0; i < 2000; i++) {
        pipeline.set("p:" + i, "" + i, new SetParams().ex(1000));
        replies.add(pipeline.get("p:" + i));
      }
    }
    for (int i = 0; i < 2000; i++) {
      Checks.equal(replies.get(i).get(), "" + i, "a pipeline of SETs and GETs");
    }
    AbstractPipeline pipeline = client.pipelined();
    Response<String> set = pipeline.set("q", "text");
    Response<Long> wrong = pipeline.incr("q");
    Response<String> get = pipeline.get("q");
    pipeline.close();
    Checks.refused(JedisDataException.class, wrong::get, "not an integer");
    Checks.equal(set.get() + get.get(), "OKtext", "the replies around an error in a pipeline");
    Set<String> found = new HashSet<>();
    ScanIteration scan = client.scanIteration(100, "p:*");
    while (!scan.isIterationCompleted()) {
      found.addAll(scan.nextBatchList());
    }
    Checks.equal(found.size(), 2000, "scanIteration");
    Checks.equal(client.keys("p:199?").size(), 10, "KEYS");
  }

  private void transactions(RedisClient client) throws Exception {
    try (AbstractTransaction transaction = client.multi()) {
      transaction.set("t", "1");
      transaction.incr("t");
      transaction.get("t");
      Checks.equal(transaction.exec(), List.of("OK", 2L, "2"), "MULTI and EXEC");
    }
    try (AbstractTransaction transaction = client.multi()) {
      transaction.set("t", "1");
      transaction.sendCommand(Protocol.Command.GET, new String[0]);
      Checks.refused(JedisDataException.class, transaction::exec, "EXECABORT");
    }
    Checks.equal(client.get("t"), "2", "a transaction with a refused command");
    try (AbstractTransaction transaction = client.transaction(false)) {
      transaction.watch("t");
      client.set("t", "0");
      transaction.multi();
      transaction.set("t", "6");
      Checks.equal(transaction.exec(), null, "a watched key that has changed");
    }
    Checks.inThreads(4, 10, () -> addTen(client));
    Checks.equal(client.get("t"), "400", "40 optimistic transactions of 4 threads");
  }

  private static Object addTen(RedisClient client) {
    for (; ; ) {
      try (AbstractTransaction transaction = client.transaction(false)) {
        transaction.watch("t");
        // A read that belongs to no transaction: the watched key keeps its value until EXEC, or EXEC fails.
        Response<String> value = transaction.get("t");
        transaction.multi();
        transaction.set("t", "" + (Integer.parseInt(value.get()) + 10));
        if (transaction.exec() != null) {
          return null;
        }
      }
    }
  }

  private void scripts(RedisClient client) {
    String sha = client.scriptLoad(Checks.RATE_LIMIT);
    List<Object> calls = new ArrayList<>();
    for (int i = 0; i < 5; i++) {
      calls.add(client.evalsha(sha, List.of("rate"), List.of("60000", "3")));
    }
    Checks.equal(calls, Arrays.asList(1L, 1L, 1L, null, null), "a rate limiter");
    Checks.equal(client.scriptExists(List.of(sha)), List.of(true), "SCRIPT EXISTS");
    client.scriptFlush();
    Checks.refused(JedisNoScriptException.class, () -> client.evalsha(sha, 1, "rate", "1", "1"), "NOSCRIPT");
    Checks.equal(
        client.eval("return {1, 'two', {KEYS[1], ARGV[1]}}", 1, "k", "x"),
        List.of(1L, "two", List.of("k", "x")),
        "EVAL");
    Checks.refused(JedisDataException.class, () -> client.eval("return redis.error_reply('MINE own')"), "MINE own");
    Checks.equal(client.set("lock", "me", new SetParams().nx().px(10_000)), "OK", "a lock");
    Checks.equal(client.eval(Checks.RELEASE, 1, "lock", "other"), 0L, "another one's release");
    Checks.equal(client.eval(Checks.RELEASE, 1, "lock", "me"), 1L, "the release of a lock");
  }

  private void reconnection(RedisClient client) {
    try (Jedis one = new Jedis(address, config().build());
        Jedis other = new Jedis(address, config().build())) {
      ClientKillParams kill = new ClientKillParams().id(String.valueOf(one.clientId()));
      Checks.equal(other.clientKill(kill), 1L, "CLIENT KILL");
      try {
        throw new AssertionError(one.incr("reconnected"));
      } catch (JedisConnectionException closed) {
        one.disconnect();
      }
      Checks.equal(one.incr("reconnected"), 1L, "a command after the server closed the connection");
      other.clientKill(new ClientKillParams().type(redis.clients.jedis.args.ClientType.NORMAL));
    }
    // The pool finds a closed connection when it is used, and gives out a new one afterwards.
    int failures = 0;
    for (; ; failures++) {
      try {
        client.incr("reconnected");
        break;
      } catch (JedisConnectionException closed) {
        Checks.equal(failures < 4, true, "at most as many failures as connections");
      }
    }
    Checks.equal(client.get("reconnected"), "2", "a pool after the server closed its connections");
  }

  private void authentication(RedisClient client) {
    client.configSet("requirepass", "secret");
    try {
      Checks.refused(JedisAccessControlException.class, () -> attempt(null, "wrong"), "WRONGPASS");
      Checks.refused(JedisAccessControlException.class, () -> attempt("nobody", "secret"), "WRONGPASS");
      Checks.equal(attempt(null, "secret"), "OK", "a password");
      Checks.equal(attempt("default", "secret"), "OK", "a user and a password");
      Checks.refused(JedisAccessControlException.class, () -> attempt(null, null), "NOAUTH");
    } finally {
      client.configSet("requirepass", "");
    }
  }

  private String attempt(String user, String password) {
    try (RedisClient attempt = client(user, password)) {
      return attempt.set("k", "1");
    }
  }
}
