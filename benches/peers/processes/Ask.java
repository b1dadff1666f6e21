import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * What the contestants of Java have in common. Each has a class of its own beside this one, which is called with
 * {@code PORT LIMIT...}, a limit being PERMITS/SECONDS.
 *
 * <p>The first line of stdout is the contestant's version. Each line of stdin is an order: {@code closed PREFIX USERS
 * IN_FLIGHT MILLIS MOST COSTS}, {@code open PREFIX USERS RATE MILLIS} or {@code ask ID NAME COST}, which is answered by
 * {@code = ID ANSWER NANOSECONDS}. A user's limiter is made when it is first named; a turn does that before its time begins.
 */
final class Ask {
    private static final int THREADS = 32;
    private final Contestant contestant;
    private final ConcurrentHashMap<String, User> users = new ConcurrentHashMap<>();
    private final ExecutorService askers = Executors.newCachedThreadPool();

    private Ask(Contestant contestant) {
        this.contestant = contestant;
    }

    interface Contestant {
        User user(String name);
    }

    /** A user's limiter. */
    interface User {
        void decide(long cost, Then then);
    }

    /** With what `contestant.rs` reads: 0 is refused, 1 admitted, 2 failed. */
    enum Answer {
        REFUSED,
        ADMITTED,
        FAILED
    }

    interface Then {
        /** The wait in nanoseconds, below 0 where none is told. */
        void answered(Answer answer, long wait);
    }

    static long[][] limits(String[] arguments) {
        return Arrays.stream(arguments)
                .skip(1)
                .map(limit -> Arrays.stream(limit.split("/")).mapToLong(Long::parseLong).toArray())
                .toArray(long[][]::new);
    }

    static void serve(String version, Contestant contestant) throws Exception {
        // Netty's threads would keep the process alive.
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> System.exit(1));
        Ask program = new Ask(contestant);
        say(version);
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

    private User user(String name) {
        return users.computeIfAbsent(name, contestant::user);
    }

    private User[] users(String prefix, String count) throws InterruptedException {
        User[] all = new User[Integer.parseInt(count)];
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

    private void ask(String[] order) {
        Then then = (answer, wait) -> say("= " + order[1] + " " + answer.ordinal() + " " + wait);
        askers.execute(() -> {
            try {
                user(order[2]).decide(Long.parseLong(order[3]), then);
            } catch (RuntimeException lost) {
                then.answered(Answer.FAILED, -1);
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
        final User[] users;
        final long[] costs;
        final AtomicLong place = new AtomicLong();
        final AtomicLong asked = new AtomicLong();
        final AtomicLong admitted = new AtomicLong();
        final AtomicLong failed = new AtomicLong();
        long most;
        long end;
        CountDownLatch running;

        Turn(User[] users, String costs) {
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
            users[(int) (at % users.length)].decide(costs[(int) (at % costs.length)], (answer, wait) -> {
                asked.incrementAndGet();
                switch (answer) {
                    case ADMITTED -> admitted.incrementAndGet();
                    case FAILED -> failed.incrementAndGet();
                    default -> { }
                }
                next();
            });
        }
    }

    private String open(String[] order) throws InterruptedException {
        User[] all = users(order[1], order[2]);
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
            all[random.nextInt(all.length)].decide(1, (answer, wait) -> {
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
