import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * The real Redisson, with its own defaults. Limits are PERMITS/SECONDS.
 *
 * <pre>
 * java -cp 'JARS/*' Ask.java PORT LIMIT...
 * </pre>
 *
 * Each line of stdin is an order: {@code closed PREFIX USERS IN_FLIGHT MILLIS MOST COSTS}, {@code open PREFIX USERS RATE
 * MILLIS} or {@code ask ID NAME COST}. A user's limiters get their rates when it is first named, by trySetRate; a turn does
 * that before its time begins.
 */
public final class Ask {
    private static final int THREADS = 32;
    private final RedissonClient client;
    private final long[][] limits;
    private final ConcurrentHashMap<String, RRateLimiter[]> users = new ConcurrentHashMap<>();
    private final ExecutorService askers = Executors.newCachedThreadPool();

    private Ask(String[] arguments) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + arguments[0]);
        client = Redisson.create(config);
        limits = new long[arguments.length - 1][];
        for (int i = 0; i < limits.length; i++) {
            limits[i] = Arrays.stream(arguments[i + 1].split("/")).mapToLong(Long::parseLong).toArray();
        }
    }

    public static void main(String[] arguments) throws Exception {
        // Netty's threads would keep the process alive.
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> System.exit(1));
        Ask program = new Ask(arguments);
        say(Redisson.class.getPackage().getImplementationVersion());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] order = line.split(" ");
            switch (order[0]) {
                case "closed" -> say(program.closed(order));
                case "open" -> say(program.open(order));
                default -> program.ask(order);
            }
        }
        System.exit(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }

    private RRateLimiter[] user(String name) {
        return users.computeIfAbsent(name, key -> {
            RRateLimiter[] limiters = new RRateLimiter[limits.length];
            for (int i = 0; i < limits.length; i++) {
                limiters[i] = client.getRateLimiter(i == 0 ? key : key + ":" + i);
                limiters[i].trySetRate(RateType.OVERALL, limits[i][0], Duration.ofSeconds(limits[i][1]));
            }
            return limiters;
        });
    }

    private RRateLimiter[][] users(String prefix, String count) throws InterruptedException {
        RRateLimiter[][] all = new RRateLimiter[Integer.parseInt(count)][];
        CountDownLatch named = new CountDownLatch(THREADS);
        for (int thread = 0; thread < THREADS; thread++) {
            int first = thread;
            askers.execute(() -> {
                for (int i = first; i < all.length; i += THREADS) {
                    all[i] = user(String.format("%s-%07d", prefix, i));
                }
                named.countDown();
            });
        }
        named.await();
        return all;
    }

    private interface Then {
        void answered(boolean admitted, boolean failed);
    }

    /** Asks each limit in turn, until one refuses. */
    private static void decide(RRateLimiter[] user, int at, long cost, Then then) {
        user[at].tryAcquireAsync(cost).whenComplete((taken, error) -> {
            if (error == null && taken && at + 1 < user.length) {
                decide(user, at + 1, cost, then);
            } else {
                then.answered(error == null && taken, error != null);
            }
        });
    }

    private void ask(String[] order) {
        askers.execute(() -> {
            try {
                decide(user(order[2]), 0, Long.parseLong(order[3]),
                        (admitted, failed) -> say("= " + order[1] + " " + (failed ? 2 : admitted ? 1 : 0)));
            } catch (RuntimeException lost) {
                say("= " + order[1] + " 2");
            }
        });
    }

    private String closed(String[] order) throws InterruptedException {
        Turn turn = new Turn(users(order[1], order[2]), order[6]);
        int inFlight = Integer.parseInt(order[3]);
        turn.most = Long.parseLong(order[5]);
        turn.running = new CountDownLatch(inFlight);
        long begin = System.nanoTime();
        turn.end = begin + Long.parseLong(order[4]) * 1_000_000;
        for (int i = 0; i < inFlight; i++) {
            turn.next();
        }
        turn.running.await();
        return turn.asked + " " + turn.admitted + " " + turn.failed + " " + (System.nanoTime() - begin);
    }

    private static final class Turn {
        final RRateLimiter[][] users;
        final long[] costs;
        final AtomicLong place = new AtomicLong();
        final AtomicLong asked = new AtomicLong();
        final AtomicLong admitted = new AtomicLong();
        final AtomicLong failed = new AtomicLong();
        long most;
        long end;
        CountDownLatch running;

        Turn(RRateLimiter[][] users, String costs) {
            this.users = users;
            this.costs = Arrays.stream(costs.split(",")).mapToLong(Long::parseLong).toArray();
        }

        /** One call after the other, each begun when the last has been answered. */
        void next() {
            long at = place.getAndIncrement();
            if (at >= most || System.nanoTime() >= end) {
                running.countDown();
                return;
            }
            decide(users[(int) (at % users.length)], 0, costs[(int) (at % costs.length)], (taken, lost) -> {
                asked.incrementAndGet();
                (lost ? failed : taken ? admitted : new AtomicLong()).incrementAndGet();
                next();
            });
        }
    }

    private String open(String[] order) throws InterruptedException {
        RRateLimiter[][] all = users(order[1], order[2]);
        double rate = Double.parseDouble(order[3]);
        int count = (int) (rate * Long.parseLong(order[4]) / 1000);
        long[] took = new long[count];
        Arrays.fill(took, 4_000_000_000L);
        CountDownLatch running = new CountDownLatch(count);
        Random random = new Random(1);
        long due = System.nanoTime();
        for (int i = 0; i < count; i++) {
            due += (long) (-Math.log(1 - random.nextDouble()) / rate * 1e9);
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            int place = i;
            long began = due;
            decide(all[random.nextInt(all.length)], 0, 1, (taken, lost) -> {
                took[place] = System.nanoTime() - began;
                running.countDown();
            });
        }
        running.await(4, TimeUnit.SECONDS);
        long[] sorted = took.clone();
        Arrays.sort(sorted);
        return at(sorted, 0.5) + " " + at(sorted, 0.99) + " " + at(sorted, 0.999);
    }

    private static double at(long[] sorted, double part) {
        return sorted[(int) (sorted.length * part)] / 1e3;
    }
}
