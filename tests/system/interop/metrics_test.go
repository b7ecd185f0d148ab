//go:build linux

package interop

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestPrometheus: Debian's Prometheus scrapes a node that receives WRITEs, and promtool checks its
// output.
func TestPrometheus(t *testing.T) {
	gate.System(t)
	program := softrnicProgram(t)
	dir := t.TempDir()
	node, server := unusedPort(t), unusedPort(t)
	softrnic := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
		return cmd
	}
	receiver := startProcess(t, softrnic("perf", "write", "bw", "--link", "shm", "--addr", "10.83.1.1/24", "--metrics", node, "--log-level",
		"info"))
	receiver.await(t, "metrics")
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil,
		"scrape_configs:\n- job_name: softrnic\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  static_configs:\n  - targets: "+
			"['%s']\n", node), 0o644); err != nil {
		t.Fatal(err)
	}
	prometheus := startProcess(t, exec.CommandContext(t.Context(), "prometheus", "--config.file", config, "--web.listen-address", server,
		"--storage.tsdb.path", filepath.Join(dir, "data")))
	prometheus.await(t, "Server is ready")

	sender := startProcess(t, softrnic("perf", "write", "bw", "--link", "shm", "--addr", "10.83.1.2/24", "-D", "60s", "10.83.1.1"))
	for _, query := range []string{
		`up{job="softrnic"} == 1`,
		`rate(node_infiniband_port_data_received_bytes_total{port="1"}[2s]) > 1e6`,
		`rate(softrnic_rcvd_pkts_total{transport="rocev2"}[2s]) > 100`,
		`softrnic_qps{state="RTS",type="RC"} >= 1`,
	} {
		awaitResult(t, server, query)
	}

	metrics := get(t, "http://"+node+"/metrics")
	lint := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	lint.Stdin = strings.NewReader(metrics)
	if out, err := lint.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v\n%s", err, out)
	}
	top, err := softrnic("top", "-n", "1", "-d", "200ms", strconv.Itoa(receiver.cmd.Process.Pid)).CombinedOutput()
	if err != nil || !strings.Contains(string(top), "10.83.1.2") || !strings.Contains(string(top), "RTS") {
		t.Errorf("softrnic top: %v\n%s", err, top)
	}
	for _, p := range []*process{sender, receiver, prometheus} {
		_ = p.cmd.Process.Signal(os.Interrupt)
	}
	<-sender.ended // it did not end by itself
	<-receiver.ended
	prometheus.wait(t)
}

// unusedPort returns an address of this machine with an unused TCP port.
func unusedPort(t *testing.T) string {
	t.Helper()
	for range 100 {
		// Linux takes ports from 32768 on for connections of other programs.
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
	t.Fatal("no port is unused")
	return ""
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return string(body)
}

// awaitResult waits until a query has a result.
func awaitResult(t *testing.T, server, query string) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		body := get(t, "http://"+server+"/api/v1/query?query="+url.QueryEscape(query))
		var answer struct {
			Data struct{ Result []json.RawMessage }
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%s: %v\n%s", query, err, body)
		}
		if len(answer.Data.Result) > 0 {
			return
		}
		if time.Since(began) > 20*time.Second {
			t.Fatalf("%s has no result", query)
		}
	}
}
