package status_test

import (
	"bytes"
	"path/filepath"
	"runtime/pprof"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"

	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/cmd/internal/status/query"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestWithoutDescriptors: a process that has no descriptors for a while answers softrnic top
// afterwards.
func TestWithoutDescriptors(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	host, err := netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	ok(t, err)
	defer func() { ok(t, host.Close()) }()
	dev, err := rdmatransport.Open(host, nil)
	ok(t, err)
	defer dev.Close()
	stop, err := status.Publish(dev, nil, nil, nil, status.Node{Command: "test"})
	ok(t, err)
	defer stop()
	sockets, err := filepath.Glob(filepath.Join(status.Directory(), "*"))
	ok(t, err)
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	ok(t, err)
	defer func() { _ = unix.Close(client) }()

	var before unix.Rlimit
	ok(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	next, err := unix.Dup(client)
	ok(t, err)
	ok(t, unix.Close(next))
	none := before
	none.Cur = uint64(next)
	ok(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	restored := func() { ok(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) }
	defer restored()
	ok(t, unix.Connect(client, &unix.SockaddrUnix{Name: sockets[0]}))
	for end := time.Now().Add(10 * time.Second); ; { // until the process has noticed
		var all bytes.Buffer
		ok(t, pprof.Lookup("goroutine").WriteTo(&all, 2))
		if bytes.Contains(all.Bytes(), []byte("accept.(*Pause).After")) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not wait for descriptors")
		}
	}
	restored()
	ok(t, unix.Shutdown(client, unix.SHUT_WR)) // it has no request for the process
	nodes, err := query.All(t.Context())
	if err != nil || len(nodes) != 1 || nodes[0].Command != "test" {
		t.Errorf("%+v, %v", nodes, err)
	}
}
