-- Limiters and what was granted of them. Times are microseconds since the epoch.
CREATE TABLE IF NOT EXISTS ratelimit_limiter (
    name text PRIMARY KEY,
    permits bigint NOT NULL,
    -- The interval, and how long an unused limiter is kept (for ever, if null), in milliseconds
    millis bigint NOT NULL,
    keep_millis bigint
);
-- One index: a limiter's grants lie side by side, the oldest first.
CREATE TABLE IF NOT EXISTS ratelimit_grant (
    name text NOT NULL,
    at bigint NOT NULL,
    id uuid NOT NULL,
    permits bigint NOT NULL,
    PRIMARY KEY (name, at, id)
);

-- Returns the time of a call: the caller's, or the server's.
CREATE OR REPLACE FUNCTION ratelimit_now(caller bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(caller, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
$$;

-- Lets one call at a time see these limiters, until its transaction is over. Nothing is written for
-- it. All calls lock in one order, so that no two wait for each other.
CREATE OR REPLACE FUNCTION ratelimit_lock(names text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    key int;
BEGIN
    -- A snapshot from before the lock would miss what the last holder took.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE 'limits need the isolation level READ COMMITTED';
    END IF;
    FOR key IN SELECT DISTINCT hashtext(name) FROM unnest(names) AS name ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(7246, key);
    END LOOP;
END $$;

-- Returns the permits in use after an instant.
CREATE OR REPLACE FUNCTION ratelimit_used(limiter text, since bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(sum(permits), 0)::bigint
    FROM ratelimit_grant WHERE name = limiter AND at > since
$$;

-- Returns the instant of the grant with whose end so many permits are free; null if that is so.
CREATE OR REPLACE FUNCTION ratelimit_freed(limiter text, since bigint, needed bigint)
RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT min(at) FROM (
        SELECT at, sum(permits) OVER (ORDER BY at, id) AS freed
        FROM ratelimit_grant WHERE name = limiter AND at > since
    ) AS log WHERE freed >= needed AND needed > 0
$$;

-- Takes the permits of all charges or of none. The arrays have one place for each charge:
-- `must_exist` is set where only a stored limit counts, `replaces` where a given one does.
CREATE OR REPLACE FUNCTION ratelimit_acquire(
    names text[], wanted bigint[], given_permits bigint[], given_millis bigint[],
    given_keep bigint[], must_exist boolean[], replaces boolean[], shadows boolean[],
    demand uuid, caller bigint
) RETURNS TABLE (
    permits bigint, millis bigint, remaining bigint,
    wait bigint, next bigint, reset bigint, changed boolean
) LANGUAGE plpgsql AS $$
DECLARE
    now bigint;
    granted boolean := true;
    stored ratelimit_limiter;
    all_permits bigint[];
    all_millis bigint[];
    all_changed boolean[];
    free bigint[];
    since bigint;
BEGIN
    PERFORM ratelimit_lock(names);
    now := ratelimit_now(caller);
    FOR i IN 1 .. cardinality(names) LOOP
        SELECT * INTO stored FROM ratelimit_limiter AS l WHERE l.name = names[i];
        IF NOT FOUND AND must_exist[i] THEN
            RAISE no_data_found USING MESSAGE = 'no limit is stored';
        END IF;
        all_changed[i] := NOT FOUND OR replaces[i] AND
            (stored.permits, stored.millis) <> (given_permits[i], given_millis[i]);
        all_permits[i] := CASE WHEN all_changed[i] THEN given_permits[i] ELSE stored.permits END;
        all_millis[i] := CASE WHEN all_changed[i] THEN given_millis[i] ELSE stored.millis END;
        since := now - all_millis[i] * 1000;
        free[i] := all_permits[i] - ratelimit_used(names[i], since);
        granted := granted AND (shadows[i] OR wanted[i] <= free[i]);
    END LOOP;
    FOR i IN 1 .. cardinality(names) LOOP
        since := now - all_millis[i] * 1000;
        -- A refusal by another limit stores none here.
        changed := all_changed[i] AND (granted OR cardinality(names) = 1);
        IF changed THEN
            INSERT INTO ratelimit_limiter
            VALUES (names[i], all_permits[i], all_millis[i], given_keep[i])
            ON CONFLICT (name) DO UPDATE SET permits = all_permits[i], millis = all_millis[i];
        END IF;
        wait := NULL;
        IF wanted[i] > free[i] THEN
            wait := ratelimit_freed(names[i], since, wanted[i] - free[i]) - since;
            wait := coalesce(wait, 0);
        ELSIF granted THEN
            DELETE FROM ratelimit_grant AS g WHERE g.name = names[i] AND g.at <= since;
            INSERT INTO ratelimit_grant VALUES (names[i], now, demand, wanted[i]);
            free[i] := free[i] - wanted[i];
        END IF;
        permits := all_permits[i];
        millis := all_millis[i];
        remaining := greatest(free[i], 0);
        next := ratelimit_freed(names[i], since, 1 - least(free[i], 0)) - since;
        SELECT max(g.at) - since INTO reset FROM ratelimit_grant AS g
        WHERE g.name = names[i] AND g.at > since AND g.permits > 0;
        RETURN NEXT;
    END LOOP;
END $$;

-- Lowers a grant to what it used, or charges more from now on.
CREATE OR REPLACE FUNCTION ratelimit_settle(
    limiter text, demand uuid, amount bigint, is_more boolean, caller bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit_lock(ARRAY[limiter]);
    IF NOT is_more THEN
        UPDATE ratelimit_grant AS g SET permits = amount
        WHERE g.name = limiter AND g.id = demand AND g.permits > amount;
    ELSIF EXISTS (SELECT FROM ratelimit_limiter AS l WHERE l.name = limiter) THEN
        INSERT INTO ratelimit_grant VALUES (limiter, ratelimit_now(caller), demand, amount);
    END IF;
END $$;

-- Stores a limit. Returns whether it did.
CREATE OR REPLACE FUNCTION ratelimit_set(
    limiter text, new_permits bigint, new_millis bigint, new_keep bigint,
    only_new boolean, existing boolean, keep boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    is_there boolean;
BEGIN
    PERFORM ratelimit_lock(ARRAY[limiter]);
    is_there := EXISTS (SELECT FROM ratelimit_limiter AS l WHERE l.name = limiter);
    IF is_there AND only_new OR NOT is_there AND existing THEN
        RETURN false;
    END IF;
    INSERT INTO ratelimit_limiter VALUES (limiter, new_permits, new_millis, new_keep)
    ON CONFLICT (name) DO UPDATE
    SET permits = new_permits, millis = new_millis, keep_millis = new_keep;
    IF NOT keep THEN
        DELETE FROM ratelimit_grant AS g WHERE g.name = limiter;
    END IF;
    RETURN true;
END $$;

-- Gives back the oldest permits in use. Returns how many; null without a limit.
CREATE OR REPLACE FUNCTION ratelimit_release(limiter text, wanted bigint, caller bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    since bigint;
    released bigint := 0;
    entry ratelimit_grant;
BEGIN
    PERFORM ratelimit_lock(ARRAY[limiter]);
    SELECT ratelimit_now(caller) - l.millis * 1000 INTO since
    FROM ratelimit_limiter AS l WHERE l.name = limiter;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    FOR entry IN SELECT * FROM ratelimit_grant AS g
        WHERE g.name = limiter AND g.at > since ORDER BY g.at, g.id
    LOOP
        EXIT WHEN released = wanted;
        UPDATE ratelimit_grant AS g SET permits = greatest(g.permits - (wanted - released), 0)
        WHERE (g.name, g.at, g.id) = (entry.name, entry.at, entry.id);
        released := least(released + entry.permits, wanted);
    END LOOP;
    RETURN released;
END $$;

-- Counts the free permits; null without a limit.
CREATE OR REPLACE FUNCTION ratelimit_available(limiter text, caller bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT greatest(
        l.permits - ratelimit_used(limiter, ratelimit_now(caller) - l.millis * 1000), 0
    ) FROM ratelimit_limiter AS l WHERE l.name = limiter
$$;

-- Removes a limiter. Returns whether there was one.
CREATE OR REPLACE FUNCTION ratelimit_delete(limiter text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit_lock(ARRAY[limiter]);
    DELETE FROM ratelimit_grant AS g WHERE g.name = limiter;
    DELETE FROM ratelimit_limiter AS l WHERE l.name = limiter;
    RETURN FOUND;
END $$;

-- Forgets limiters that may be and were not used for as long. For a job that runs now and then.
CREATE OR REPLACE FUNCTION ratelimit_forget(caller bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    limiter text;
    forgotten bigint := 0;
BEGIN
    FOR limiter IN SELECT l.name FROM ratelimit_limiter AS l
        WHERE ratelimit_now(caller) - l.keep_millis * 1000 >=
            coalesce((SELECT max(g.at) FROM ratelimit_grant AS g WHERE g.name = l.name), 0)
    LOOP
        forgotten := forgotten + ratelimit_delete(limiter)::int;
    END LOOP;
    RETURN forgotten;
END $$;
