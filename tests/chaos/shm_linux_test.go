package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/shm"
)

// TestShm: processes on a segment in shared memory are killed at random moments, while they connect to, and send to, others
// that are under load. The data of every other pair is right, and comes once and in order; no file and no memory is left.
// SOFTRNIC_LONG: 1,000 are killed, with 16 others; else 10, with 6.
func TestShm(t *testing.T) {
	dir, err := os.MkdirTemp("", "c") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l := setting{
		medium: "shm", dir: dir, victim: "10.1.100.1", // free at once when one is killed
		server: func(i int) string { return fmt.Sprintf("10.1.%d.1", i) }, client: func(i int) string { return fmt.Sprintf("10.1.%d.2", i) },
	}.start(t, long(3, 8))
	for k := range long(10, 1000) {
		l.killOne()
		if k%100 == 99 {
			t.Logf("%d killed", k+1)
		}
	}
	for _, p := range l.all() {
		want := 2 * (len(l.all()) - 1)
		for deadline := time.Now().Add(20 * time.Second); p.rings() != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				for _, q := range l.all() {
					if t.Errorf("%s has %d rings, want %d", q.task, q.rings(), want); q.rings() == 0 {
						t.Error(q.line())
					}
				}
				t.FailNow()
			}
		}
	}
	l.end()
	segment, err := shm.Open(segmentName, shm.Directory(dir)) // whoever joins cleans up
	if err != nil {
		t.Fatal(err)
	}
	if err := segment.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "shm-"+segmentName)); len(left) > 0 || err != nil {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}
