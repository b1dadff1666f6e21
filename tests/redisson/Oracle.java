import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateIntervalUnit;
import org.redisson.api.RateLimiterConfig;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Drives the real Redisson: one request a line on stdin, one answer a line on stdout, both flat JSON objects.
 *
 * <pre>
 * java Oracle PORT           answers requests, on the Redis at this port of the loopback
 * java Oracle patch DIR      writes into DIR the RateLimiter class of the jar, with our clock in the place of the system's
 * </pre>
 *
 * A request names what is done, to which limiter, by which instance and when:
 * {@code {"op":"tryAcquire","name":"x","c":0,"n":1,"now":1700000000000}}. The answer is {@code {"ret":"true"}} or, where
 * Redisson throws, {@code {"err":"RedisException","msg":".."}}. Methods that not every version has are called by
 * reflection, so that this one file compiles against all of them.
 */
public final class Oracle {
    /** Stands where RedissonRateLimiter refers to java.lang.System: only for this method. */
    public static final class Clock {
        static final AtomicLong NOW = new AtomicLong();

        public static long currentTimeMillis() {
            return NOW.get();
        }
    }

    private static final String PATCHED = "org/redisson/RedissonRateLimiter.class";

    private final String address;
    /** Instances by number, made on demand: to limits per client, each is a client. */
    private final Map<Integer, RedissonClient> clients = new HashMap<>();

    private Oracle(String address) {
        this.address = address;
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 2 && arguments[0].equals("patch")) {
            patch(Path.of(arguments[1]));
            return;
        }
        // Netty's threads would keep the process alive after an exception, and after the end of stdin.
        int status = 1;
        try {
            new Oracle("redis://127.0.0.1:" + arguments[0]).serve();
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        System.exit(status);
    }

    /** Copies the class with the one constant that names java.lang.System replaced. */
    private static void patch(Path directory) throws Exception {
        byte[] original;
        try (InputStream in = Redisson.class.getClassLoader().getResourceAsStream(PATCHED)) {
            original = in.readAllBytes();
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        int from = 0;
        int hits = 0;
        byte[] wanted = constant("java/lang/System");
        for (int i = 0; i + wanted.length <= original.length; i++) {
            if (java.util.Arrays.equals(original, i, i + wanted.length, wanted, 0, wanted.length)) {
                bytes.write(original, from, i - from);
                bytes.write(constant("Oracle$Clock"));
                from = i + wanted.length;
                hits++;
            }
        }
        bytes.write(original, from, original.length - from);
        if (hits != 1) {
            throw new IllegalStateException(PATCHED + " names java/lang/System " + hits + " times, not once");
        }
        Path target = directory.resolve(PATCHED);
        Files.createDirectories(target.getParent());
        Files.write(target, bytes.toByteArray());
    }

    /** A CONSTANT_Utf8 as it stands in a class file: tag, length, bytes. */
    private static byte[] constant(String text) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        out.writeByte(1);
        out.writeUTF(text);
        return bytes.toByteArray();
    }

    private void serve() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        String version = Redisson.class.getPackage().getImplementationVersion();
        // The patched class comes from a folder, the untouched one from its jar.
        boolean fake = !Redisson.class.getClassLoader().getResource(PATCHED).getProtocol().equals("jar");
        JsonObject ready = new JsonObject();
        ready.addProperty("redisson", version);
        ready.addProperty("clientId", client(0).getId());
        ready.addProperty("clock", fake ? "fake" : "system");
        out.println(ready);
        out.flush();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Request request = new Request(line);
            out.println(answer(request));
            out.flush();
        }
        clients.values().forEach(client -> client.shutdown(0, 1, TimeUnit.SECONDS));
    }

    /** What was returned or thrown, as texts. */
    private JsonObject answer(Request request) {
        JsonObject answer = new JsonObject();
        try {
            answer.addProperty("ret", String.valueOf(perform(request)));
        } catch (Throwable thrown) {
            Throwable error = thrown instanceof InvocationTargetException ? thrown.getCause() : thrown;
            answer.addProperty("err", error.getClass().getSimpleName());
            answer.addProperty("msg", String.valueOf(error.getMessage()));
        }
        return answer;
    }

    private Object perform(Request request) throws Exception {
        Clock.NOW.set(request.number("now", 0));
        RedissonClient client = client((int) request.number("c", 0));
        String op = request.text("op");
        if (op.equals("clientId")) {
            return client.getId();
        }
        RRateLimiter limiter = client.getRateLimiter(request.text("name"));
        long n = request.number("n", 1);
        long rate = request.number("rate", 0);
        long interval = request.number("interval", 0);
        long keepAlive = request.number("keepAlive", 0);
        RateType type = request.number("type", 0) == 1 ? RateType.PER_CLIENT : RateType.OVERALL;
        switch (op) {
            case "tryAcquire":
                return limiter.tryAcquire(n);
            case "tryAcquireFor":
                return limiter.tryAcquire(n, request.number("timeout", 0), TimeUnit.MILLISECONDS);
            case "acquire":
                limiter.acquire(n);
                return null;
            case "available":
                return limiter.availablePermits();
            case "release":
                call(limiter, "release", n);
                return null;
            case "trySetRate":
                if (keepAlive > 0) {
                    return call(limiter, op, type, rate, Duration.ofMillis(interval), Duration.ofMillis(keepAlive));
                }
                return limiter.trySetRate(type, rate, interval, RateIntervalUnit.MILLISECONDS);
            case "setRate":
                if (keepAlive > 0) {
                    call(limiter, op, type, rate, Duration.ofMillis(interval), Duration.ofMillis(keepAlive));
                } else {
                    limiter.setRate(type, rate, interval, RateIntervalUnit.MILLISECONDS);
                }
                return null;
            case "setRateArgs":
                call(limiter, "setRate", args(type, rate, interval, keepAlive, request.number("keepState", 0) == 1));
                return null;
            case "updateRate":
                return call(limiter, op, args(type, rate, interval, keepAlive, request.number("keepState", 0) == 1));
            case "config":
                RateLimiterConfig config = limiter.getConfig();
                return config.getRateType().ordinal() + " " + config.getRate() + " " + config.getRateInterval();
            case "expire":
                return limiter.expire(Duration.ofMillis(request.number("ttl", 0)));
            case "expireIfSet":
                return limiter.expireIfSet(Duration.ofMillis(request.number("ttl", 0)));
            case "expireIfNotSet":
                return limiter.expireIfNotSet(Duration.ofMillis(request.number("ttl", 0)));
            case "expireIfGreater":
                return limiter.expireIfGreater(Duration.ofMillis(request.number("ttl", 0)));
            case "expireIfLess":
                return limiter.expireIfLess(Duration.ofMillis(request.number("ttl", 0)));
            case "clearExpire":
                return limiter.clearExpire();
            case "ttl":
                return limiter.remainTimeToLive();
            case "delete":
                return limiter.delete();
            case "exists":
                return limiter.isExists();
            case "rename":
                limiter.rename(request.text("to"));
                return null;
            case "saturate":
                return saturate(limiter, (int) request.number("threads", 1), n, request.number("timeout", 0),
                    request.number("until", 0));
            default:
                throw new IllegalArgumentException("no such op: " + op);
        }
    }

    /** Asks as fast as it can, or in waits of a timeout, until a moment; answers "calls granted", and throws what Redisson threw first. */
    private static String saturate(RRateLimiter limiter, int threads, long n, long timeout, long until)
        throws Exception {
        AtomicLong calls = new AtomicLong();
        AtomicLong granted = new AtomicLong();
        List<Throwable> thrown = java.util.Collections.synchronizedList(new ArrayList<>());
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                try {
                    while (System.currentTimeMillis() < until) {
                        calls.incrementAndGet();
                        if (timeout == 0 ? limiter.tryAcquire(n) : limiter.tryAcquire(n, timeout, TimeUnit.MILLISECONDS)) {
                            granted.incrementAndGet();
                        }
                    }
                } catch (Throwable error) {
                    thrown.add(error);
                }
            });
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
        if (!thrown.isEmpty()) {
            throw new InvocationTargetException(thrown.get(0));
        }
        return calls + " " + granted;
    }

    private RedissonClient client(int number) {
        return clients.computeIfAbsent(number, none -> {
            Config config = new Config();
            config.setThreads(4).setNettyThreads(4);
            config.useSingleServer().setAddress(address).setConnectionPoolSize(8).setConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionPoolSize(1).setSubscriptionConnectionMinimumIdleSize(1)
                // A call that is sent again would be a step that was not asked for.
                .setRetryAttempts(0).setConnectTimeout(120_000).setTimeout(120_000);
            return Redisson.create(config);
        });
    }

    private static Object args(RateType type, long rate, long interval, long keepAlive, boolean keepState) throws Exception {
        Class<?> api = Class.forName("org.redisson.api.ratelimiter.RateLimiterArgs");
        Object args = api.getMethod("of", RateType.class, long.class, Duration.class)
            .invoke(null, type, rate, Duration.ofMillis(interval));
        args = call(args, "keepState", keepState);
        return keepAlive > 0 ? call(args, "keepAliveTime", Duration.ofMillis(keepAlive)) : args;
    }

    /** Calls a method that not every version has. */
    private static Object call(Object on, String name, Object... arguments) throws Exception {
        for (Method method : on.getClass().getMethods()) {
            if (method.getName().equals(name) && fits(method.getParameterTypes(), arguments)) {
                method.setAccessible(true);
                return method.invoke(on, arguments);
            }
        }
        throw new NoSuchMethodException(name);
    }

    private static boolean fits(Class<?>[] parameters, Object[] arguments) {
        if (parameters.length != arguments.length) {
            return false;
        }
        for (int i = 0; i < parameters.length; i++) {
            boolean primitive = parameters[i] == long.class && arguments[i] instanceof Long
                || parameters[i] == boolean.class && arguments[i] instanceof Boolean;
            if (!primitive && !parameters[i].isInstance(arguments[i])) {
                return false;
            }
        }
        return true;
    }

    /** A flat JSON object of texts and whole numbers: all that the driver writes. */
    private static final class Request {
        private final JsonObject fields;

        Request(String line) {
            fields = JsonParser.parseString(line).getAsJsonObject();
        }

        String text(String name) {
            if (!fields.has(name)) {
                throw new IllegalArgumentException("the request lacks " + name);
            }
            return fields.get(name).getAsString();
        }

        long number(String name, long otherwise) {
            return fields.has(name) ? fields.get(name).getAsLong() : otherwise;
        }
    }
}
