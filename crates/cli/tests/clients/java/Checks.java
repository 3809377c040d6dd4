// What the programs for libraries of Java share: checks, scripts, and the address of the server.

import java.util.Arrays;
import java.util.Objects;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

final class Checks {
  private Checks() {}

  // A fixed window: it counts a call, and starts the window at the first one.
  static final String RATE_LIMIT =
      "local calls = redis.call('INCR', KEYS[1])\n"
          + "if calls == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end\n"
          + "return calls <= tonumber(ARGV[2])\n";

  // Deletes a lock only if the caller still holds it.
  static final String RELEASE =
      "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

  interface Action {
    Object run() throws Exception;
  }

  static void equal(Object found, Object expected, String what) {
    if (!Objects.deepEquals(found, expected)) {
      throw new AssertionError(what + ": " + text(found) + " instead of " + text(expected));
    }
  }

  private static String text(Object value) {
    return Arrays.deepToString(new Object[] {value});
  }

  /** The action must throw exactly this class of exception, with this text in its message or in that of a cause. */
  static void refused(Class<? extends Exception> kind, Action action, String text) {
    Object reply;
    try {
      reply = action.run();
    } catch (Exception error) {
      equal(error.getClass(), kind, "the exception (" + error + ")");
      for (Throwable cause = error; cause != null; cause = cause.getCause()) {
        if (String.valueOf(cause.getMessage()).contains(text)) {
          return;
        }
      }
      throw new AssertionError("no \"" + text + "\" in " + error, error);
    }
    throw new AssertionError(text(reply) + " instead of " + kind.getName());
  }

  /** All values of a byte, again and again. */
  static byte[] everyByte(int length) {
    byte[] bytes = new byte[length];
    for (int i = 0; i < length; i++) {
      bytes[i] = (byte) i;
    }
    return bytes;
  }

  /** Runs the action in several threads, so often in each. */
  static void inThreads(int threads, int times, Action action) throws Exception {
    ExecutorService executor = Executors.newFixedThreadPool(threads);
    Future<?>[] runs = new Future<?>[threads];
    for (int i = 0; i < threads; i++) {
      runs[i] =
          executor.submit(
              () -> {
                for (int j = 0; j < times; j++) {
                  action.run();
                }
                return null;
              });
    }
    for (Future<?> run : runs) {
      run.get();
    }
    executor.shutdown();
  }
}
