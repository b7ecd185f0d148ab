package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/softrnic/softrnic/link/shm"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// TestShm kills processes on a segment in shared memory at random moments. They connect and send to
// other processes, which are under load, over RoCEv2 and iWARP. The data of every other pair must
// be right, and arrive once and in order. No file and no memory may be left. With SOFTRNIC_LONG it
// kills 1,000 processes beside 16 others; otherwise 12 beside 8.
func TestShm(t *testing.T) {
	gate.System(t)
	dir := directory(t)
	l := setting{
		medium: "shm", dir: dir, victim: "10.1.100.1", // free immediately when one is killed
		server:     func(i int) string { return fmt.Sprintf("10.1.%d.1", i) },
		client:     func(i int) string { return fmt.Sprintf("10.1.%d.2", i) },
		transports: []verbs.Transport{verbs.RoCEv2, verbs.IWARP},
	}.start(t, long(4, 8))
	l.killSome(long(12, 1000), nil)
	l.ringsEach(2 * (len(l.all()) - 1)) // two for each other live process
	l.end()
	// The next process to join cleans up.
	segment, err := shm.Open(segmentName, &shm.Config{Directory: dir})
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
