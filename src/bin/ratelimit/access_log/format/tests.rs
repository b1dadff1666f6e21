//! Columns are found in each format, and read.

use super::{
    super::{OWN, Rows},
    *,
};

fn columns(names: &[&str]) -> Rows {
    let mut rows = Rows::of(names.iter().copied());
    // Without those of every log.
    rows.columns.drain(..OWN.len());
    rows
}

/// Reads the column of a line that shows its format.
fn read(line: &str, by: &str) -> Option<String> {
    let format = LogFormat::find(line, &columns(&["time", by])).unwrap();
    text(&format.read(line)?)
}

fn text(fields: &Cells<'_>) -> Option<String> {
    fields[1].as_deref().map(str::to_owned)
}

const COMBINED: &str = r#"192.0.2.7 - ann [10/Oct/2000:13:55:36 -0700] "GET /a\"b?q=1 HTTP/1.1" 200 23 "-" "curl 8" 0.25"#;

#[test]
fn every_column_of_a_combined_line_can_be_counted_by() {
    for (by, caller) in [
        ("ip", "192.0.2.7"),
        ("user", "ann"),
        ("time", "10/Oct/2000:13:55:36 -0700"),
        ("4", "10/Oct/2000:13:55:36 -0700"),
        ("request", r#"GET /a\"b?q=1 HTTP/1.1"#),
        ("status", "200"),
        ("agent", "curl 8"),
        ("10", "0.25"),
    ] {
        assert_eq!(read(COMBINED, by).as_deref(), Some(caller), "{by}");
    }
    let format = LogFormat::find(COMBINED, &columns(&["time", "10"])).unwrap();
    assert_eq!(
        format.read(&COMBINED[..60]),
        None,
        "its last column is cut off"
    );
    for missing in ["tenant", "11"] {
        let error = LogFormat::find(COMBINED, &columns(&["time", missing]))
            .unwrap_err()
            .1;
        assert!(error.contains(&format!("{missing:?}")), "{error}");
    }
}

#[test]
fn a_time_in_another_place_is_found() {
    let line = r#"example.org:443 192.0.2.7 - - [1771211336.000] "GET / HTTP/1.1" 200"#;
    assert_eq!(read(line, "2").as_deref(), Some("192.0.2.7"));
    assert_eq!(read(line, "time").as_deref(), Some("1771211336.000"));
}

#[test]
fn json_has_names_also_inside_of_others() {
    for (line, by, caller) in [
        (r#"{"time":"2000-10-10T20:55:36Z","ip":"a"}"#, "ip", "a"),
        (r#"{"ts":1771211336.0,"remote_addr":"a"}"#, "ip", "a"),
        (
            r#"{"ts":1771211336,"request":{"remote_ip":"a"}}"#,
            "ip",
            "a",
        ),
        (r#"{"ts":1771211336,"user":{"id":7}}"#, "user.id", "7"),
        (r#"{"ts":1771211336,"user.id":"x"}"#, "user.id", "x"),
    ] {
        assert_eq!(read(line, by).as_deref(), Some(caller), "{line}");
        let format = LogFormat::find(line, &columns(&["time", by])).unwrap();
        let empty = format.read("{}").unwrap();
        assert!(empty.iter().all(Option::is_none), "{empty:?}");
        assert_eq!(format.read(r#"{"ts":"#), None);
    }
    let error = LogFormat::find(r#"{"level":"info"}"#, &columns(&["ip"]))
        .unwrap_err()
        .1;
    assert!(error.contains("\"ip\": it has level"), "{error}");
    let error = LogFormat::find("{\"\\u001b[2J\":1}", &columns(&["ip"]))
        .unwrap_err()
        .1;
    assert!(error.ends_with("it has \\u{1b}[2J"), "{error}");
}

#[test]
fn a_request_line_has_a_method_and_a_path() {
    let mut columns = columns(&["method", "path", "host", "status"]);
    columns.columns.iter_mut().for_each(|it| it.1 = true);
    let line = r#"{"ts":1771211336,"request":"POST /a?b HTTP/1.1"}"#;
    let caddy = r#"{"ts":1771211336,"request":{"method":"GET","uri":"/","host":"h"}}"#;
    let absent = r#"192.0.2.7 - - [1771211336.0] "-" 400"#;
    for (line, expected) in [
        (
            COMBINED,
            [Some("GET"), Some(r#"/a\"b?q=1"#), None, Some("200")],
        ),
        (line, [Some("POST"), Some("/a?b"), None, None]),
        (caddy, [Some("GET"), Some("/"), Some("h"), None]),
        (absent, [Some("-"), None, None, Some("400")]),
    ] {
        let fields = LogFormat::find(line, &columns).unwrap().read(line).unwrap();
        let fields: Vec<_> = fields.iter().map(Option::as_deref).collect();
        assert_eq!(fields, expected, "{line}");
    }
    let short = LogFormat::find("192.0.2.7 [1771211336.0] x", &columns).unwrap();
    assert!(short.columns.iter().all(Option::is_none));
}

#[test]
fn csv_has_named_columns() {
    let header = r#"status,time,"client_ip",path"#;
    let format = LogFormat::find(header, &columns(&["time", "ip"])).unwrap();
    assert!(format.has_header());
    for (line, caller) in [
        ("200,1771211336,a,/", Some("a")),
        (r#"200,"1771211336","a ""b"", c",/"#, Some(r#"a ""b"", c"#)),
        ("200,2000-10-10 20:55:36,,", Some("")),
        ("", None),
        (r#"200,1771211336,"a"#, None),
    ] {
        let fields = format.read(line);
        assert_eq!(fields.and_then(|it| text(&it)).as_deref(), caller, "{line}");
    }
    for header in ["time,path", "what is this", ""] {
        assert!(
            LogFormat::find(header, &columns(&["time", "ip"])).is_err(),
            "{header}"
        );
    }
}
