package key

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
)

var program = clitest.Program(func() any {
	return new(struct {
		Key  Command  `cmd:""`
		Help struct{} `cmd:""`
	})
})

// TestKey makes a key that only its owner may read, shows the same public key of it later, and
// destroys no key.
func TestKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.key")
	run := func(args ...string) (code int, stdout, stderr string) {
		return program.Run(t.Context(), nil, append([]string{"key", file}, args...)...)
	}
	code, made, stderr := run()
	info, err := os.Stat(file)
	if code != cli.ExitOK || err != nil || info.Mode().Perm() != 0o600 && runtime.GOOS != "windows" || len(strings.Fields(made)) != 2 {
		t.Fatalf("exit code %d, %v, mode %v: %s%s", code, err, info.Mode(), made, stderr)
	}
	private, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if code, shown, stderr := run("--public"); code != cli.ExitOK || shown != made {
		t.Errorf("exit code %d: %s%s, want %s", code, shown, stderr, made)
	}
	if code, stdout, stderr := run(); code != cli.ExitFailed || !strings.Contains(stderr, "it exists") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	now, err := os.ReadFile(file)
	if err != nil || string(now) != string(private) || strings.Contains(made, strings.TrimSpace(string(private))) {
		t.Errorf("the key has changed, or is shown: %v", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := run("--public"); code != cli.ExitFailed || !strings.Contains(stderr, "others may read or write it (mode 0640)") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }
