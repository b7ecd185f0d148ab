package impair

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
)

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }

// idle is a command that runs a node until its context ends.
type idle struct{ running.Flags }

func (c *idle) Run(ctx context.Context, e *cli.Env) error {
	return c.RunNode(ctx, e, func(ctx context.Context, _ *node.Node) error {
		_, err := e.Stdout.Write([]byte("up\n"))
		<-ctx.Done()
		return err
	})
}

var program = clitest.Program(func() any {
	return new(struct {
		Impair Command `cmd:""`
		Idle   idle    `cmd:""`
	})
})

// TestImpair changes the impairment of a node, and fails to change that of one without --impair.
func TestImpair(t *testing.T) {
	pid, lan := strconv.Itoa(os.Getpid()), new(pipe.Switch)
	start := func(args ...string) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := program.Announce(ctx, lan, append([]string{"idle", "--addr", "10.0.0.1/24"}, args...)...)
		return func() {
			cancel()
			if o := <-ended; o.Code != cli.ExitOK {
				t.Errorf("exit code %d: %s", o.Code, o.Stderr)
			}
		}
	}
	for _, c := range []struct {
		name  string
		flags []string // of the node
		args  []string
		code  int
		want  string
	}{
		{"no node", nil, nil, cli.ExitFailed, "no node of this user"},
		{"no impairment possible", []string{"--log-level", "warn"}, []string{"loss=1%"}, cli.ExitFailed, "--impair none"},
		{"shown", []string{"--impair", "loss=1%"}, nil, cli.ExitOK, "loss=1%"},
		{"changed", []string{"--impair", "loss=1%"}, []string{"loss=2%,delay=1ms"}, cli.ExitOK, "loss=2%,delay=1ms"},
		{"ended", []string{"--impair", "loss=1%"}, []string{"none"}, cli.ExitOK, "none"},
		{"nonsense", []string{"--impair", "none"}, []string{"loss=2"}, cli.ExitUsage, "probability"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.flags != nil {
				defer start(c.flags...)()
			}
			code, stdout, stderr := program.Run(t.Context(), nil, append([]string{"impair", pid}, c.args...)...)
			if code != c.code || !strings.Contains(stdout+stderr, c.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", code, c.code, c.want, stdout, stderr)
			}
		})
	}
}
