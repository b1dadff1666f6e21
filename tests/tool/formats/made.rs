//! The lines of each format, made from a request.

use serde_json::json;

use super::Sent;

/// A format: its name, the option that reads it, its header, and a line.
pub(super) struct Format(
    pub(super) &'static str,
    pub(super) &'static str,
    pub(super) &'static str,
    pub(super) fn(&Sent) -> String,
);

pub(super) fn formats() -> Vec<Format> {
    vec![
        Format("Apache common", "", "", Sent::common),
        Format("Apache combined", "", "", Sent::combined),
        Format("Apache vhost_combined", "", "", |it| {
            format!("shop.example:443 {}", it.combined())
        }),
        Format(
            "Apache, the host without its names",
            "--columns ip=2,",
            "",
            |it| format!("shop.example {}", it.combined().replacen("- - ", "- ", 1)),
        ),
        Format("nginx", "", "", |it| format!("{} \"-\"", it.combined())),
        Format(
            "nginx behind a proxy",
            "--client-ip-from 10 --trusted 10.0.0.0/8",
            "",
            |it| {
                let line = it.combined().replacen(&it.ip, "10.0.0.9", 1);
                format!("{line} \"{}\"", it.ip)
            },
        ),
        Format("nginx ingress", "", "", |it| {
            let upstream = "120 0.004 [shop-web-80] [] 10.0.0.7:8080 512 0.004";
            format!("{} {upstream} {} {}", it.combined(), it.status, it.uuid())
        }),
        Format("nginx JSON", "", "", |it| {
            let time = it.at("%Y-%m-%dT%H:%M:%S+00:00");
            let (request, status) = (it.request("HTTP/2.0"), it.status.to_string());
            json!({
                "time_local": time, "remote_addr": it.ip, "remote_user": "", "request": request,
                "status": status, "body_bytes_sent": "5", "request_time": "0.000",
            })
            .to_string()
        }),
        Format("Caddy", "", "", |it| {
            json!({
                "level": "info", "ts": it.time as f64 + 0.0, "logger": "http.log.access",
                "msg": "handled request", "status": it.status, "duration": 0.000_004, "size": 5,
                "request": {
                    "remote_ip": it.ip, "remote_port": "4711", "client_ip": it.ip,
                    "proto": "HTTP/2.0", "method": it.method, "host": "shop.example",
                    "uri": it.path, "headers": { "User-Agent": ["curl/8"] },
                },
            })
            .to_string()
        }),
        Format(
            "Caddy behind a proxy",
            "--client-ip-from request.headers.X-Forwarded-For --trusted 10.0.0.0/8",
            "",
            |it| {
                json!({
                    "ts": it.time as f64 + 0.0, "status": it.status,
                    "request": {
                        "remote_ip": "10.0.0.9", "method": it.method, "host": "shop.example",
                        "uri": it.path, "headers": { "X-Forwarded-For": [it.ip] },
                    },
                })
                .to_string()
            },
        ),
        Format("Traefik CLF", "", "", |it| {
            let number = it.number + 1;
            let (line, to) = (it.combined(), "http://10.0.0.7:80");
            format!("{line} {number} \"web@docker\" \"{to}\" 0ms")
        }),
        Format("Traefik JSON", "", "", |it| {
            json!({
                "ClientAddr": it.socket(), "ClientHost": it.ip, "ClientPort": "4711",
                "Duration": 0, "DownstreamStatus": it.status, "RequestHost": "shop.example",
                "RequestMethod": it.method, "RequestPath": it.path, "StartUTC": it.iso(),
                "level": "info", "time": it.at("%Y-%m-%dT%H:%M:%SZ"),
            })
            .to_string()
        }),
        Format("HAProxy", "--columns ip=6,time=7,", "", |it| {
            let (syslog, time) = (it.at("%b %d %H:%M:%S"), it.at("%d/%b/%Y:%H:%M:%S.000"));
            let (client, request) = (it.socket(), it.request("HTTP/1.1"));
            format!(
                "<134>{syslog} lb haproxy[99]: {client} [{time}] in~ app/srv1 0/0/1/2/3 {} 1234 \
                 - - ---- 1/1/0/0/0 0/0 \"{request}\"",
                it.status
            )
        }),
        Format(
            "Envoy",
            "--columns ip=9,time=1,request=2,status=3",
            "",
            |it| {
                let (time, request) = (it.iso(), it.request("HTTP/2"));
                format!(
                    "[{time}] \"{request}\" {} - 0 154 2 1 \"{}\" \"curl/8\" \"{}\" \"shop.example\" \
                 \"10.0.0.7:8080\"",
                    it.status,
                    it.ip,
                    it.uuid()
                )
            },
        ),
        Format("Envoy JSON", "--columns ip=x_forwarded_for,", "", |it| {
            json!({
                "authority": "shop.example", "bytes_received": 0, "duration": 0,
                "downstream_local_address": "10.0.0.2:80", "method": it.method, "path": it.path,
                "downstream_remote_address": format!("10.0.0.1:{}", 40_000 + it.number % 20_000),
                "response_code": it.status, "start_time": it.iso(), "upstream_host": "10.0.0.7:80",
                "x_forwarded_for": it.ip, "requested_server_name": null,
            })
            .to_string()
        }),
        Format("Istio", "--columns ip=", "", |it| {
            let (time, request) = (it.iso(), it.request("HTTP/1.1"));
            format!(
                "[{time}] \"{request}\" {} - via_upstream - \"-\" 0 5 1 0 \"{}\" \"curl/8\" \
                 \"{}\" \"shop\" \"10.0.0.7:8080\" outbound|80||shop 10.0.0.1:47 10.0.0.2:80 \
                 10.0.0.5:12 - default",
                it.status,
                it.ip,
                it.uuid()
            )
        }),
        Format("ALB", "--columns ip=4,time=2,", "", |it| {
            let (client, time, status) = (it.socket(), it.iso(), it.status);
            let target = format!("{} https://shop.example:443{} HTTP/2.0", it.method, it.path);
            format!(
                "h2 {time} app/lb/50dc6c495c0c9188 {client} 10.0.0.66:9000 0.000 0.001 0.037 \
                 {status} {status} 5 257 \"{target}\" \"curl/8\" ECDHE TLSv1.2 arn:aws:x \
                 \"Root=1-58337262\" \"shop.example\" \"arn\" 1 {time} \"forward\" \"-\" \"-\""
            )
        }),
        Format(
            "CloudFront",
            "",
            "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) \
             cs-uri-stem sc-status cs(Referer) x-host-header time-taken\n",
            |it| {
                let path = it.path.split('?').next().unwrap_or_default();
                format!(
                    "{}\tFRA2\t1045\t{}\t{}\td111.cloudfront.net\t{path}\t{}\t-\tshop.example\t\
                     0.002",
                    it.at("%Y-%m-%d\t%H:%M:%S"),
                    it.ip,
                    it.method,
                    it.status
                )
            },
        ),
        Format(
            "IIS",
            "",
            "#Software: Microsoft Internet Information Services 10.0\n#Version: 1.0\n#Date: \
             2026-10-10 13:55:36\n#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query \
             s-port cs-username c-ip cs(User-Agent) sc-status time-taken\n",
            |it| {
                let (path, query) = it.path.split_once('?').unwrap_or((it.path, "-"));
                format!(
                    "{} 10.0.0.2 {} {path} {query} 443 - {} curl/8+(x) {} 2",
                    it.at("%Y-%m-%d %H:%M:%S"),
                    it.method,
                    it.ip,
                    it.status
                )
            },
        ),
        Format("GCP", "", "", |it| {
            json!({
                "httpRequest": {
                    "latency": "0.017s", "remoteIp": it.ip, "requestMethod": it.method,
                    "requestUrl": format!("https://shop.example{}", it.path),
                    "serverIp": "10.0.0.7", "status": it.status,
                },
                "insertId": it.uuid(), "receiveTimestamp": it.iso(), "timestamp": it.iso(),
            })
            .to_string()
        }),
        Format("Cloudflare", "", "", |it| {
            json!({
                "ClientIP": it.ip, "ClientRequestHost": "shop.example",
                "ClientRequestMethod": it.method, "ClientRequestURI": it.path,
                "EdgeEndTimestamp": it.time * 1_000_000_000, "EdgeResponseStatus": it.status,
                "EdgeStartTimestamp": it.time * 1_000_000_000, "RayID": "3a6050bcbe121a87",
            })
            .to_string()
        }),
        Format(
            "Heroku",
            "--columns ip=fwd,time=1,method=method,path=path",
            "",
            |it| {
                format!(
                    "{} heroku[router]: at=info method={} path=\"{}\" host=shop.example \
                 request_id={} fwd=\"{}\" dyno=web.1 connect=0ms service=18ms status={} bytes=1300 \
                 protocol=https",
                    it.at("%Y-%m-%dT%H:%M:%S.000000+00:00"),
                    it.method,
                    it.path,
                    it.uuid(),
                    it.ip,
                    it.status
                )
            },
        ),
        Format("syslog", "--skip-fields 5", "", |it| {
            format!("{} web1 nginx: {}", it.at("%b %e %H:%M:%S"), it.combined())
        }),
        Format("syslog of today", "--skip-fields 7", "", |it| {
            format!("<190>1 {} web1 nginx - - - {}", it.iso(), it.combined())
        }),
        Format("journald", "--skip-fields 3", "", |it| {
            let time = it.at("%Y-%m-%dT%H:%M:%S+0000");
            format!("{time} web1 nginx[12]: {}", it.combined())
        }),
        Format("CRI", "--skip-fields 3", "", |it| {
            format!("{} stdout F {}", it.iso(), it.combined())
        }),
        Format("CRI around JSON", "--skip-fields 3", "", |it| {
            let request = it.request("HTTP/2.0");
            let line = json!({
                "time": it.iso(), "client_ip": it.ip, "request": request, "status": it.status,
            });
            format!("{} stdout F {line}", it.iso())
        }),
        Format("docker compose", "--skip-fields 2", "", |it| {
            format!("web-1  | {}", it.combined())
        }),
        Format(
            "gin",
            "--columns ip=10,time=2+4,method=12,path=13,status=6",
            "",
            |it| {
                format!(
                    "[GIN] {} | {} |     13.25\u{b5}s | {:>15} | {:<7} \"{}\"",
                    it.at("%Y/%m/%d - %H:%M:%S"),
                    it.status,
                    it.ip,
                    it.method,
                    it.path
                )
            },
        ),
        Format(
            "WebLogic",
            "",
            "#Version:\t1.0\n#Fields:\tc-ip\tdate\ttime\ttime-taken\tcs-method\tcs-uri\tsc-status\n#Software:\tWebLogic\n",
            |it| {
                let (ip, time) = (&it.ip, it.at("%Y-%m-%d\t%H:%M:%S"));
                format!(
                    "{ip}\t{time}\t0.029\t{}\t{}\t{}",
                    it.method, it.path, it.status
                )
            },
        ),
        Format(
            "WebLogic without its header",
            "--columns ip=1,time=2+3,method=5,path=6,status=7",
            "",
            |it| {
                let (ip, time) = (&it.ip, it.at("%Y-%m-%d %H:%M:%S"));
                format!("{ip} {time} 0.029 {} {} {}", it.method, it.path, it.status)
            },
        ),
        Format("Tomcat", "", "", |it| {
            format!("{} 17 http-nio-8080-exec-1", it.common())
        }),
        Format("morgan", "", "", |it| {
            format!("::ffff:{}", it.combined()).replace("::ffff:2001", "2001")
        }),
        Format(
            "uvicorn by docker",
            "--columns ip=3,time=1,request=5,status=6",
            "",
            |it| {
                let (time, client, request) = (it.iso(), it.socket(), it.request("HTTP/1.1"));
                format!("{time} INFO:     {client} - \"{request}\" {} OK", it.status)
            },
        ),
        Format(
            "uvicorn with a time",
            "--columns ip=5,time=1+2,request=7,status=8",
            "",
            |it| {
                let (time, client) = (it.at("%Y-%m-%d %H:%M:%S,000"), it.socket());
                let request = it.request("HTTP/1.1");
                format!(
                    "{time} INFO uvicorn.access: {client} - \"{request}\" {} OK",
                    it.status
                )
            },
        ),
        Format(
            "CSV",
            "",
            "timestamp,client_ip,method,path,status\n",
            |it| {
                format!(
                    "{},{},{},\"{}\",{}",
                    it.iso(),
                    it.ip,
                    it.method,
                    it.path,
                    it.status
                )
            },
        ),
    ]
}
