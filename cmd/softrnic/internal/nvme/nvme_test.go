package nvme

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/auth"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
)

var program = clitest.Program(func() any {
	return new(struct {
		Nvme Command `cmd:""`
	})
})

const nqn = "nqn.2014-08.org.example:disk"

// A file may be larger than the address space.
func TestLargeFile(t *testing.T) {
	var n namespace
	if err := n.UnmarshalText([]byte("disk,size=5G")); err != nil || n.size != 5<<30 {
		t.Errorf("%d, %v", n.size, err)
	}
}

func TestServeUsage(t *testing.T) {
	dir := t.TempDir()
	for args, want := range map[string]string{
		"--nqn " + nqn:                                                    "--namespace",
		"--namespace memory,size=1M":                                      "--nqn",
		"--namespace memory,size=1M --nqn disk":                           "must begin with nqn.",
		"--namespace memory,size=1M --host x --nqn " + nqn:                "must begin with nqn.",
		"--namespace memory --nqn " + nqn:                                 "memory,size=SIZE",
		"--namespace memory,size=1X --nqn " + nqn:                         "is not a size",
		"--namespace memory,size=0 --nqn " + nqn:                          "is not a size",
		"--namespace memory,size=9999999T --nqn " + nqn:                   "is not a size",
		"--namespace memory,size=99999T --nqn " + nqn:                     "of memory: must be",
		"--namespace memory,size=1M --memory 99999T --nqn " + nqn:         "of memory: must be",
		"--namespace disk,block=513 --nqn " + nqn:                         "block=513",
		"--namespace disk,rw --nqn " + nqn:                                `unknown option "rw"`,
		"--namespace memory,size=1M --host-key DHHC-1:00:x: --nqn " + nqn: "must be NQN=FILE",
		"--namespace memory,size=1M --host-key host=file --nqn " + nqn:    "must begin with nqn.",
		"--namespace memory,size=1M --memory 1x --nqn " + nqn:             "is not a size",
	} {
		code, _, stderr := program.Run(t.Context(), new(pipe.Switch), append([]string{"nvme", "serve"}, strings.Fields(args)...)...)
		if code != cli.ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exits with %d: %s", args, code, stderr)
		}
	}
	key, err := auth.NewKey(32, 0)
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"key": key.Secret() + "\n", "open": key.Secret(), "damaged": key.Secret()[1:]} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "open"), 0o640); err != nil {
		t.Fatal(err)
	}
	host := "--namespace memory,size=1M --nqn " + nqn + " --host-key " + nqn + "=" + dir
	for args, want := range map[string]string{
		host + "/none":    "no such file",
		host + "/open":    "mode 0640",
		host + "/damaged": "does not begin with DHHC-1:",
		host + "/key --controller-key " + nqn + "2=" + dir + "/key": "has no --host-key",
		"--namespace " + dir + "/none --nqn " + nqn:                 "no such file",
		"--namespace " + dir + " --nqn " + nqn:                      "directory",
		"--namespace memory,size=1M --depth 8 --nqn " + nqn:         "QueueDepth 8",
		"--namespace memory,size=1M --memory 4K --nqn " + nqn:       "Memory 4096",
	} {
		code, _, stderr := program.Run(t.Context(), new(pipe.Switch), append([]string{"nvme", "serve"}, strings.Fields(args)...)...)
		if code != cli.ExitFailed || !strings.Contains(stderr, want) || strings.Contains(stderr, key.Secret()[10:40]) {
			t.Errorf("%s: exits with %d: %s", args, code, stderr)
		}
	}
}

// A target creates its file, serves hosts and Prometheus, and ends at an interrupt.
func TestServe(t *testing.T) {
	lan := new(pipe.Switch)
	file := filepath.Join(t.TempDir(), "disk.img")
	c := program.Start(t, lan, "nvme serve --addr 10.0.0.1/24 --metrics 127.0.0.1:0 --namespace memory,size=1M --namespace "+
		file+",size=8M,block=4096 --nqn "+nqn)
	c.Await(t, &c.Err, "msg=serving")
	if info, err := os.Stat(file); err != nil || info.Size() != 8<<20 {
		t.Errorf("the file: %v, %v", info, err)
	}
	host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := rdmacm.Dial(ctx, dev, fmt.Sprintf("10.0.0.1:%d", nvme.Port),
		&rdmacm.Config{PrivateData: (&nvme.ConnRequest{HRQSize: 32, HSQSize: 31}).Append(nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if a, err := nvme.ParseConnAccept(conn.Peer().PrivateData); err != nil || a.CRQSize != 32 {
		t.Errorf("%+v, %v", a, err)
	}
	_, rest, _ := strings.Cut(c.Err.String(), "url=")
	url, _, _ := strings.Cut(rest, "\n")
	metrics := func() string {
		resp, err := http.Get(strings.TrimSpace(url))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	// The target counts the queue when the host's RTU arrives, after Dial has returned.
	for said := metrics(); !strings.Contains(said, "softrnic_nvme_queues 1"); said = metrics() {
		if ctx.Err() != nil {
			t.Fatalf("metrics:\n%s", said)
		}
	}
	if runtime.GOOS != "windows" { // the file has a target
		args := "nvme serve --addr 10.0.0.3/24 --nqn " + nqn + " --namespace " + file
		code, _, stderr := program.Run(ctx, lan, strings.Fields(args)...)
		if code != cli.ExitFailed || !strings.Contains(stderr, "locked") || !strings.Contains(stderr, "--force") {
			t.Errorf("a second target exits with %d: %s", code, stderr)
		}
		forced := program.Start(t, lan, args+" --force")
		forced.Await(t, &forced.Err, "msg=serving")
		forced.Stop()
		if code := forced.Wait(t); code != cli.ExitOK {
			t.Errorf("with --force: exits with %d: %s", code, &forced.Err)
		}
	}
	c.Stop()
	if code := c.Wait(t); code != cli.ExitOK {
		t.Errorf("exits with %d: %s", code, &c.Err)
	}
	<-conn.Done()
}

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }
