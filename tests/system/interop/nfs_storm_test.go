//go:build linux

package interop

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

//go:embed testdata/nfsstorm.py
var nfsStorm []byte

// TestNFSStorm: the server is killed at random moments, and started again, while a kernel creates,
// links, renames and removes files. No call is lost. At most one for each kill may fail because it
// is repeated, and was executed before: replies are kept in memory, as in Linux's server. An
// exclusive CREATE never fails so.
func TestNFSStorm(t *testing.T) {
	gate.Long(t)
	// Over RoCE clients wait for a minute before they connect again.
	for transport, kills := range map[verbs.Transport]int{verbs.RoCEv2: 2, verbs.IWARP: 6} {
		t.Run(transport.String(), func(t *testing.T) {
			p := cmPeer(t, 2, transport)
			p.MountStorage(t)
			l := newNFSLab(t, p, t.TempDir(), 20*time.Minute)
			server := l.serve(nfsAddr, "")
			if err := p.Put(l.ctx, "/storm.py", nfsStorm); err != nil {
				t.Fatal(err)
			}
			l.run(t, p, nfsModules, l.mount(nfsAddr, "/mnt/nfs"), "mkdir /mnt/nfs/storm", "rm -f /tmp/end")
			said := make(chan string, 1)
			go func() {
				out, code, err := p.Exec(l.ctx, "python3 /storm.py /mnt/nfs/storm /tmp/end 1")
				if code != 0 || err != nil {
					out = fmt.Sprintf("exit status %d, %v\n%s", code, err, out)
				}
				said <- out
			}()
			for i := range kills + 1 {
				l.changes(t, "storm", 5+rand.IntN(60), said)
				if i < kills {
					_ = server.cmd.Process.Kill()
					<-server.ended
					server = l.serve(nfsAddr, "")
				}
			}
			l.run(t, p, "touch /tmp/end")
			var end struct {
				Calls            int
				Slowest          float64
				Repeated, Broken []string
				Model            map[string]*string
			}
			out := <-said
			if err := json.Unmarshal([]byte(out), &end); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Logf("result: %v: killed %d times during %d calls, %d failed as they were repeated, the slowest took %.0f s",
				transport, kills, end.Calls, len(end.Repeated), end.Slowest)
			if len(end.Broken) > 0 || len(end.Repeated) > kills {
				t.Errorf("%d calls failed as they were repeated; %s", len(end.Repeated), strings.Join(end.Broken, "; "))
			}
			l.holds(t, "storm", end.Model)
			l.run(t, p, "umount /mnt/nfs")
			l.stop(server)
		})
	}
}

// changes waits until a directory has been seen to change so many times. said is what the program
// that changes it says if it ends.
func (l *nfsLab) changes(t *testing.T, name string, n int, said <-chan string) {
	t.Helper()
	var last time.Time
	for n > 0 {
		info, err := os.Stat(l.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if !info.ModTime().Equal(last) {
			last = info.ModTime()
			n--
		}
		select {
		case out := <-said:
			t.Fatal(out)
		case <-time.After(time.Millisecond):
		}
	}
}

// holds compares a directory with names and the contents of files, the targets of links, or nil for
// directories.
func (l *nfsLab) holds(t *testing.T, dir string, want map[string]*string) {
	t.Helper()
	entries, err := os.ReadDir(l.path(dir))
	if err != nil || len(entries) != len(want) {
		t.Errorf("%d names, not %d, %v", len(entries), len(want), err)
	}
	for _, e := range entries {
		var got *string
		path := l.path(dir + "/" + e.Name())
		switch {
		case e.Type()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				t.Fatal(err)
			}
			got = &target
		case !e.IsDir():
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text := string(b)
			got = &text
		}
		expected, ok := want[e.Name()]
		if !ok || (got == nil) != (expected == nil) || got != nil && *got != *expected {
			t.Errorf("%s is not as the client has left it", e.Name())
		}
	}
}
