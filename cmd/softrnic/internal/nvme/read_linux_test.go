package nvme

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/powercut"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// TestReadPowerCut: when a read of a namespace to a new file has ended, its data and its name are
// on the disk.
func TestReadPowerCut(t *testing.T) {
	d := powercut.NewDisk(t, 16<<20, nil)
	dir := d.Mount(t)
	lan := new(pipe.Switch)
	image := filepath.Join(t.TempDir(), "image")
	want := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	if err := os.WriteFile(image, want, 0o600); err != nil {
		t.Fatal(err)
	}
	server := program.Start(t, lan, "nvme serve --addr 10.0.0.1/24 --namespace "+image+" --nqn "+nqn)
	server.Await(t, &server.Err, "msg=serving")
	code, _, stderr := program.Run(t.Context(), lan,
		strings.Fields("nvme read 10.0.0.1 "+filepath.Join(dir, "copy")+" --addr 10.0.0.2/24")...)
	if code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	err := powercut.Mounted(t, d.Cut(rand.New(rand.NewPCG(1, 1))), func(dir string) error {
		got, err := os.ReadFile(filepath.Join(dir, "copy"))
		if err == nil && !bytes.Equal(got, want) {
			err = fmt.Errorf("the file has %d bytes, not the %d of the namespace", len(got), len(want))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
