//! The list of faults, and the tests for each. `tests/pure/house.rs` compares the tests, and the
//! page `failure`, with it.

/// One row of the matrix.
#[derive(Debug)]
pub(crate) struct Row {
    /// As the table on the page says it
    pub(crate) fault: &'static str,
    /// Tests of `tests/matrix`, under load and with all oracles
    pub(crate) played: &'static [&'static str],
    /// Tests elsewhere that look at a part of it more closely: file and name
    pub(crate) also: &'static [(&'static str, &'static str)],
}

/// By their numbers, from 1.
pub(crate) const ROWS: [Row; 26] = [
    Row {
        fault: "a server is killed",
        played: &["row_01_a_server_that_is_killed"],
        also: &[(
            "tests/faults/loss.rs",
            "a_server_that_comes_back_is_used_within_a_second",
        )],
    },
    Row {
        fault: "it comes back at once, empty or with its data",
        played: &[
            "row_02_a_server_that_comes_back_empty",
            "row_02_a_server_that_comes_back_with_its_data",
        ],
        also: &[],
    },
    Row {
        fault: "it is stopped for five seconds, and goes on",
        played: &["row_03_a_server_that_is_stopped_and_goes_on"],
        also: &[
            ("tests/faults/silence.rs", "a_short_stall_keeps_no_permits"),
            ("tests/faults/silence.rs", "a_long_stall_keeps_no_permits"),
            (
                "tests/faults/silence.rs",
                "a_stalled_server_meets_the_policy_at_the_deadline",
            ),
        ],
    },
    Row {
        fault: "replies take 1 to 120 ms, then 600",
        played: &["row_04_replies_that_take_their_time"],
        also: &[("tests/faults/silence.rs", "a_slow_connection_is_kept")],
    },
    Row {
        fault: "connections fall silent, one way or both",
        played: &["row_05_connections_that_fall_silent"],
        also: &[("tests/faults/silence.rs", "a_silent_connection_is_replaced")],
    },
    Row {
        fault: "replies are cut by a reset or an end, arrive byte by byte, or are nonsense",
        played: &["row_06_replies_that_are_torn_or_nonsense"],
        also: &[
            (
                "tests/faults/delivery.rs",
                "a_call_whose_reply_was_lost_is_resent_and_takes_nothing_twice",
            ),
            (
                "tests/faults/silence.rs",
                "a_connection_lost_for_good_keeps_no_permits",
            ),
        ],
    },
    Row {
        fault: "no server is there, the name does not resolve, or something else answers",
        played: &[
            "row_07_a_server_that_is_not_there_at_first",
            "row_07_a_name_that_does_not_resolve",
            "row_07_an_address_that_leads_elsewhere",
        ],
        also: &[
            (
                "tests/faults/down.rs",
                "a_service_starts_without_redis_and_finds_it_later",
            ),
            (
                "tests/faults/down.rs",
                "a_server_that_hangs_up_is_not_stormed",
            ),
        ],
    },
    Row {
        fault: "FLUSHALL, FLUSHDB",
        played: &[
            "row_08_all_data_is_flushed",
            "row_08_the_database_is_flushed",
        ],
        also: &[("tests/faults/loss.rs", "lost_data_costs_no_decision")],
    },
    Row {
        fault: "SCRIPT FLUSH",
        played: &["row_09_scripts_are_flushed"],
        also: &[
            ("tests/faults/loss.rs", "forgotten_scripts_cost_no_decision"),
            (
                "tests/topologies/cluster.rs",
                "one_node_forgets_its_scripts",
            ),
        ],
    },
    Row {
        fault: "one key of three is lost",
        played: &[
            "row_10_the_limit_is_lost",
            "row_10_the_permits_left_are_lost",
            "row_10_the_log_is_lost",
        ],
        also: &[
            (
                "tests/store/defects/lost_keys.rs",
                "a_lost_log_is_an_interval_without_permits",
            ),
            (
                "tests/store/defects/lost_keys.rs",
                "a_lost_value_is_counted_from_the_log",
            ),
        ],
    },
    Row {
        fault: "Sentinel: a master hands over, is killed, or is stopped and comes back",
        played: &[
            "row_11_a_master_that_hands_over",
            "row_11_a_master_that_is_killed",
            "row_11_a_master_that_comes_back",
        ],
        also: &[
            (
                "tests/topologies/sentinel.rs",
                "a_killed_master_is_followed_by_its_replica",
            ),
            ("tests/topologies/sentinel.rs", "a_demoted_master_is_left"),
        ],
    },
    Row {
        fault: "the address leads to another master, and the old one is a replica",
        played: &["row_12_an_address_that_leads_to_another_master"],
        also: &[(
            "tests/faults/down.rs",
            "a_replica_meets_the_policy_until_it_is_a_master_again",
        )],
    },
    Row {
        fault: "Cluster: a master hands over, or is killed; a replica is down and scripts are flushed",
        played: &[
            "row_13_a_master_that_hands_its_slots_over",
            "row_13_a_master_that_is_killed",
            "row_13_a_replica_that_is_down_while_scripts_are_flushed",
        ],
        also: &[
            (
                "tests/topologies/cluster.rs",
                "a_dead_master_costs_its_own_slots_only",
            ),
            (
                "tests/topologies/cluster.rs",
                "a_silent_master_costs_its_own_slots_only",
            ),
        ],
    },
    Row {
        fault: "Cluster: a slot moves, key by key",
        played: &["row_14_a_slot_that_moves"],
        also: &[("tests/topologies/cluster.rs", "a_slot_moves_under_traffic")],
    },
    Row {
        fault: "Cluster: CLUSTERDOWN",
        played: &["row_15_a_cluster_that_is_down"],
        also: &[],
    },
    Row {
        fault: "permissions, keys and passwords are taken away at run time",
        played: &["row_16_permissions_that_are_taken_away"],
        also: &[
            (
                "tests/faults/permissions.rs",
                "a_user_who_may_call_no_script_is_rejected",
            ),
            (
                "tests/faults/logs.rs",
                "an_outage_is_two_lines_without_a_key",
            ),
        ],
    },
    Row {
        fault: "no memory is left; keys are evicted",
        played: &["row_17_no_memory_is_left", "row_17_limiters_are_evicted"],
        also: &[],
    },
    Row {
        fault: "writes are refused: MISCONF, NOREPLICAS",
        played: &[
            "row_18_a_snapshot_that_fails",
            "row_18_a_master_without_its_replicas",
        ],
        also: &[],
    },
    Row {
        fault: "a script does not end: BUSY",
        played: &["row_19_a_script_of_somebody_else_that_does_not_end"],
        also: &[],
    },
    Row {
        fault: "CLIENT PAUSE, DEBUG SLEEP",
        played: &[
            "row_20_a_server_that_pauses_writers",
            "row_20_a_server_that_sleeps",
        ],
        also: &[],
    },
    Row {
        fault: "the server closes connections: CLIENT KILL, maxclients, timeout",
        played: &[
            "row_21_connections_that_the_server_closes",
            "row_21_a_server_that_takes_no_more_connections",
            "row_21_a_server_that_closes_idle_connections",
        ],
        also: &[
            (
                "tests/faults/loss.rs",
                "killed_connections_cost_no_decision",
            ),
            (
                "tests/faults/sources.rs",
                "a_pool_survives_killed_connections",
            ),
        ],
    },
    Row {
        fault: "clocks: the server's is set back or forth, callers' are wrong or differ",
        played: &[
            "row_22_a_server_whose_clock_is_set_back",
            "row_22_a_server_whose_clock_is_set_forth",
            "row_22_a_caller_whose_clock_is_an_hour_off",
            "row_22_callers_whose_clocks_differ",
        ],
        also: &[
            (
                "tests/store/defects/clocks.rs",
                "grants_from_the_future_are_set_back_by_the_servers_clock",
            ),
            (
                "tests/store/defects/clocks.rs",
                "a_client_clock_an_hour_ahead_is_no_error_and_no_loss",
            ),
        ],
    },
    Row {
        fault: "callers go away, at every await point",
        played: &["row_23_callers_that_go_away_at_every_await_point"],
        also: &[
            (
                "tests/faults/silence.rs",
                "a_limiters_dropped_call_is_given_back",
            ),
            (
                "tests/faults/silence.rs",
                "a_request_that_hangs_up_stays_charged",
            ),
        ],
    },
    Row {
        fault: "requests are delivered twice",
        played: &["row_24_requests_that_are_delivered_twice"],
        also: &[
            (
                "tests/faults/delivery.rs",
                "a_call_that_is_delivered_twice_takes_nothing_twice",
            ),
            (
                "tests/faults/settling.rs",
                "a_settlement_that_is_delivered_twice_counts_once",
            ),
        ],
    },
    Row {
        fault: "one key as fast as may be, 20,000 new keys, 500,000 permits that expire at once",
        played: &[
            "row_25_a_key_that_is_asked_for_all_the_time",
            "row_25_keys_that_are_all_different",
            "row_25_permits_that_expire_all_at_once",
        ],
        also: &[(
            "tests/store/deny_cache/floods.rs",
            "a_flood_costs_two_calls_a_second",
        )],
    },
    Row {
        fault: "a runtime whose threads are kept busy, and one of a single thread",
        played: &[
            "row_26_workers_that_are_kept_busy",
            "row_26_a_runtime_of_one_thread",
        ],
        also: &[(
            "tests/faults/runtimes.rs",
            "a_runtime_that_stands_still_blocks_no_other",
        )],
    },
];
