// What an application does with Lettuce, against the server at HOST and PORT.
//
//   java LettuceSmoke HOST PORT
//
// The program prints a line for each run that succeeds, and ends with an exception at the first wrong reply.

import io.lettuce.core.ClientOptions;
import io.lettuce.core.ExpireArgs;
import io.lettuce.core.GetExArgs;
import io.lettuce.core.KeyValue;
import io.lettuce.core.KillArgs;
import io.lettuce.core.LettuceFutures;
import io.lettuce.core.LettuceVersion;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisConnectionException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisNoScriptException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SetArgs;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.StatusOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.support.ConnectionPoolSupport;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.commons.pool2.impl.GenericObjectPool;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;

public final class LettuceSmoke {
  private final RedisClient client;
  private final RedisURI address;
  private final StatefulRedisConnection<String, String> connection;
  private final RedisCommands<String, String> commands;

  private LettuceSmoke(RedisClient client, RedisURI address) {
    this.client = client;
    this.address = address;
    this.connection = client.connect();
    this.commands = connection.sync();
  }

  public static void main(String[] arguments) throws Exception {
    RedisURI address = RedisURI.create(arguments[0], Integer.parseInt(arguments[1]));
    for (ProtocolVersion protocol : ProtocolVersion.values()) {
      RedisClient client = RedisClient.create(address);
      client.setOptions(ClientOptions.builder().protocolVersion(protocol).build());
      LettuceSmoke smoke = new LettuceSmoke(client, address);
      smoke.commands.flushall();
      smoke.connection(protocol);
      smoke.values();
      smoke.errors();
      smoke.pipelines();
      smoke.transactions();
      smoke.scripts();
      smoke.pools();
      smoke.reconnection();
      smoke.authentication();
      client.shutdown(Duration.ZERO, Duration.ofSeconds(5));
      System.out.println("Lettuce " + LettuceVersion.getVersion().split("/")[0] + " " + protocol);
    }
  }

  private void connection(ProtocolVersion protocol) {
    String info = commands.clientInfo();
    String resp = protocol == ProtocolVersion.RESP2 ? "2" : "3";
    for (String field : new String[] {"resp=" + resp, "lib-name=Lettuce", "lib-ver=" + LettuceVersion.getVersion()}) {
      Checks.equal(info.contains(field), true, field + " in " + info);
    }
    Checks.equal(commands.ping(), "PONG", "PING");
    Checks.equal(commands.info("server").contains("redis_mode:standalone"), true, "INFO");
    Checks.equal(commands.configGet("maxmemory").size(), 1, "CONFIG GET");
    Checks.equal(commands.commandInfo("get").size(), 1, "COMMAND INFO");
  }

  private void values() throws Exception {
    Checks.equal(commands.get("missing"), null, "GET of no key");
    Checks.equal(commands.set("k", "v"), "OK", "SET");
    Checks.equal(commands.set("k", "other", SetArgs.Builder.nx()), null, "SET NX of a key");
    Checks.equal(commands.set("no", "other", SetArgs.Builder.xx()), null, "SET XX of no key");
    Checks.equal(commands.setGet("k", "w", SetArgs.Builder.xx()), "v", "SET XX GET");
    Checks.equal(commands.set("k", "w", SetArgs.Builder.ex(100)), "OK", "SET EX");
    Checks.equal(commands.ttl("k") > 90, true, "TTL");
    Checks.equal(commands.set("k", "x", SetArgs.Builder.keepttl()), "OK", "SET KEEPTTL");
    Checks.equal(commands.pttl("k") > 90_000, true, "PTTL");
    Checks.equal(commands.persist("k"), true, "PERSIST");
    Checks.equal(commands.expire("k", 50, ExpireArgs.Builder.nx()), true, "EXPIRE NX");
    Checks.equal(commands.expire("k", 10, ExpireArgs.Builder.gt()), false, "EXPIRE GT of a shorter one");
    Checks.equal(commands.getex("k", GetExArgs.Builder.px(20)), "x", "GETEX PX");
    Thread.sleep(50);
    Checks.equal(commands.exists("k"), 0L, "a key after its expiry");
    Checks.equal(commands.mset(Map.of("a", "1", "b", "2.5")), "OK", "MSET");
    Checks.equal(
        commands.mget("a", "missing"), List.of(KeyValue.just("a", "1"), KeyValue.empty("missing")), "MGET");
    Checks.equal(commands.msetnx(Map.of("a", "9", "new", "9")), false, "MSETNX");
    Checks.equal(
        List.of(commands.incr("a"), commands.incrby("a", 40), commands.decr("a")), List.of(2L, 42L, 41L), "counters");
    Checks.equal(commands.incrbyfloat("b", 0.25), 2.75, "INCRBYFLOAT");
    Checks.equal(List.of(commands.append("a", "!"), commands.strlen("a")), List.of(3L, 3L), "APPEND and STRLEN");
    Checks.equal(commands.getdel("a") + commands.getrange("b", 0, 0), "41!2", "GETDEL and GETRANGE");
    Checks.equal(commands.del("a", "b"), 1L, "DEL");
    try (StatefulRedisConnection<byte[], byte[]> binary = client.connect(ByteArrayCodec.INSTANCE)) {
      binary.sync().set(Checks.everyByte(255), Checks.everyByte(65_536));
      byte[] found = binary.sync().get(Checks.everyByte(255));
      Checks.equal(found, Checks.everyByte(65_536), "65,536 bytes of all values");
    }
    commands.set("text", "na\u00efve \u2603");
    Checks.equal(commands.get("text"), "na\u00efve \u2603", "text");
  }

  private void errors() {
    commands.set("word", "abc");
    Checks.refused(RedisCommandExecutionException.class, () -> commands.incr("word"), "not an integer");
    ProtocolKeyword unknown = () -> "NO-SUCH".getBytes(StandardCharsets.US_ASCII);
    Checks.refused(
        RedisCommandExecutionException.class,
        () -> commands.dispatch(unknown, new StatusOutput<>(StringCodec.UTF8), new CommandArgs<>(StringCodec.UTF8)),
        "unknown command");
    Checks.refused(RedisCommandExecutionException.class, () -> commands.set("word", "x".repeat(65_537)), "ERR");
    Checks.equal(commands.get("word"), "abc", "the connection after errors");
  }

  private void pipelines() throws Exception {
    try (StatefulRedisConnection<String, String> connection = client.connect()) {
      RedisAsyncCommands<String, String> async = connection.async();
      connection.setAutoFlushCommands(false);
      List<RedisFuture<String>> replies = new ArrayList<>();
      for (int i = 0; i < 2000; i++) {
        async.set("p:" + i, "" + i, SetArgs.Builder.ex(1000));
        replies.add(async.get("p:" + i));
      }
      connection.flushCommands();
      Checks.equal(
          LettuceFutures.awaitAll(Duration.ofSeconds(20), replies.toArray(new RedisFuture<?>[0])), true, "a pipeline");
      for (int i = 0; i < 2000; i++) {
        Checks.equal(replies.get(i).get(), "" + i, "a pipeline of SETs and GETs");
      }
    }
    Set<String> found = new HashSet<>();
    ScanIterator.scan(commands, ScanArgs.Builder.matches("p:*").limit(100)).forEachRemaining(found::add);
    Checks.equal(found.size(), 2000, "ScanIterator");
    Checks.equal(commands.keys("p:199?").size(), 10, "KEYS");
  }

  private void transactions() throws Exception {
    commands.multi();
    commands.set("t", "1");
    commands.incr("t");
    commands.get("t");
    Checks.equal(Arrays.asList(commands.exec().stream().toArray()), List.of("OK", 2L, "2"), "MULTI and EXEC");
    try (StatefulRedisConnection<String, String> other = client.connect()) {
      commands.watch("t");
      other.sync().set("t", "0");
      commands.multi();
      commands.set("t", "6");
      Checks.equal(commands.exec().wasDiscarded(), true, "a watched key that has changed");
    }
    commands.multi();
    commands.set("t", "7");
    Checks.equal(commands.discard(), "OK", "DISCARD");
    Checks.equal(commands.get("t"), "0", "a transaction that was discarded");
  }

  private void scripts() {
    String[] keys = {"rate"};
    String sha = commands.scriptLoad(Checks.RATE_LIMIT);
    Checks.equal(sha, commands.digest(Checks.RATE_LIMIT), "SCRIPT LOAD");
    List<Boolean> calls = new ArrayList<>();
    for (int i = 0; i < 5; i++) {
      calls.add(commands.evalsha(sha, ScriptOutputType.BOOLEAN, keys, "60000", "3"));
    }
    Checks.equal(calls.subList(0, 3), List.of(true, true, true), "a rate limiter");
    Checks.equal(Boolean.TRUE.equals(calls.get(3)), false, "a rate limiter beyond its limit");
    Checks.equal(commands.scriptExists(sha), List.of(true), "SCRIPT EXISTS");
    commands.scriptFlush();
    Checks.refused(
        RedisNoScriptException.class,
        () -> commands.evalsha(sha, ScriptOutputType.INTEGER, keys, "1", "1"),
        "NOSCRIPT");
    Object nested =
        commands.eval(
            "return {1, 'two', {KEYS[1], ARGV[1]}}", ScriptOutputType.MULTI, new String[] {"k"}, "x");
    Checks.equal(nested, List.of(1L, "two", List.of("k", "x")), "EVAL");
    Checks.refused(
        RedisCommandExecutionException.class,
        () -> commands.eval("return redis.error_reply('MINE own')", ScriptOutputType.STATUS),
        "MINE own");
    Checks.equal(commands.set("lock", "me", SetArgs.Builder.nx().px(10_000)), "OK", "a lock");
    String[] lock = {"lock"};
    Checks.equal(commands.eval(Checks.RELEASE, ScriptOutputType.INTEGER, lock, "other"), 0L, "another one's release");
    Checks.equal(commands.eval(Checks.RELEASE, ScriptOutputType.INTEGER, lock, "me"), 1L, "the release of a lock");
  }

  private void pools() throws Exception {
    GenericObjectPoolConfig<StatefulRedisConnection<String, String>> config = new GenericObjectPoolConfig<>();
    config.setMaxTotal(4);
    try (GenericObjectPool<StatefulRedisConnection<String, String>> pool =
        ConnectionPoolSupport.createGenericObjectPool(client::connect, config)) {
      commands.set("pooled", "0");
      Checks.inThreads(8, 5, () -> addTen(pool));
      Checks.equal(commands.get("pooled"), "400", "40 optimistic transactions of 8 threads with 4 connections");
    }
  }

  private static Object addTen(GenericObjectPool<StatefulRedisConnection<String, String>> pool) throws Exception {
    try (StatefulRedisConnection<String, String> connection = pool.borrowObject()) {
      RedisCommands<String, String> commands = connection.sync();
      TransactionResult result;
      do {
        commands.watch("pooled");
        int value = Integer.parseInt(commands.get("pooled"));
        commands.multi();
        commands.set("pooled", "" + (value + 10));
        result = commands.exec();
      } while (result.wasDiscarded());
      return null;
    }
  }

  private void reconnection() throws Exception {
    try (StatefulRedisConnection<String, String> other = client.connect()) {
      long before = commands.clientId();
      Checks.equal(other.sync().clientKill(KillArgs.Builder.id(before)), 1L, "CLIENT KILL");
      Checks.equal(commands.incr("reconnected"), 1L, "a command after the server closed the connection");
      Checks.equal(commands.clientId() != before, true, "another connection");
    }
    RedisFuture<String> reply = connection.async().get("reconnected");
    Checks.equal(reply.get(20, TimeUnit.SECONDS), "1", "an asynchronous command");
  }

  private void authentication() {
    commands.configSet("requirepass", "secret");
    try {
      refused(null, "wrong");
      refused("nobody", "secret");
      Checks.equal(attempt(null, "secret"), "OK", "a password");
      Checks.equal(attempt("default", "secret"), "OK", "a user and a password");
    } finally {
      commands.configSet("requirepass", "");
    }
  }

  /** Lettuce closes a connection that is refused. Rarely, it notices the end before the reason, and reports only that. */
  private void refused(String user, String password) {
    for (int left = 2; ; left--) {
      try {
        Checks.refused(RedisConnectionException.class, () -> attempt(user, password), "WRONGPASS");
        return;
      } catch (AssertionError error) {
        if (left == 0 || !(error.getCause() instanceof RedisConnectionException)) {
          throw error;
        }
      }
    }
  }

  private String attempt(String user, String password) {
    RedisURI.Builder with = RedisURI.Builder.redis(address.getHost(), address.getPort());
    if (user == null) {
      with.withPassword(password.toCharArray());
    } else {
      with.withAuthentication(user, password.toCharArray());
    }
    try (StatefulRedisConnection<String, String> connection = client.connect(with.build())) {
      return connection.sync().set("k", "1");
    }
  }
}
