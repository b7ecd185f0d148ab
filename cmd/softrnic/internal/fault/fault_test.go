package fault

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
	"github.com/softrnic/softrnic/rdmatransport/fault"
)

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }

// idle is a command that runs a node until its context ends.
type idle struct{ running.Flags }

func (c *idle) Run(ctx context.Context, e *cli.Env) error {
	return c.RunNode(ctx, e, func(ctx context.Context, n *node.Node) error {
		_, err := n.Dev.AllocPD()
		if _, err := e.Stdout.Write([]byte("up\n")); err != nil {
			return err
		}
		<-ctx.Done()
		return err
	})
}

var program = clitest.Program(func() any {
	return new(struct {
		Fault Command `cmd:""`
		Idle  idle    `cmd:""`
	})
})

// TestFault adds, lists and ends rules of a node.
func TestFault(t *testing.T) {
	pid, lan := strconv.Itoa(os.Getpid()), new(pipe.Switch)
	start := func(args ...string) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := program.Announce(ctx, lan, append([]string{"idle", "--addr", "10.0.0.1/24"}, args...)...)
		return func() {
			cancel()
			<-ended // its PD is left
		}
	}
	for _, c := range []struct {
		name  string
		flags []string // of the node
		args  []string
		code  int
		want  []string
	}{
		{"no node", nil, []string{pid}, cli.ExitFailed, []string{"no node of this user"}},
		{"without the flag", []string{"--log-level", "warn"}, []string{pid, "reg_mr=ENOMEM"}, cli.ExitOK, []string{"reg_mr=ENOMEM", " 0 "}},
		{"no cable", []string{"--log-level", "warn"}, []string{pid, "port=down"}, cli.ExitFailed, []string{"--fault none"}},
		{"shown", []string{"--fault", "reg_mr=EIO; alloc_pd=ENOMEM:*"}, []string{pid}, cli.ExitOK,
			[]string{"reg_mr=EIO ", "alloc_pd=ENOMEM:* "}},
		{"several", []string{"--fault", "none"}, []string{pid, "port=down", "create_cq=EIO"}, cli.ExitOK,
			[]string{"port=down ", "create_cq=EIO"}},
		{"ended", []string{"--fault", "reg_mr=EIO"}, []string{pid, "none"}, cli.ExitOK, []string{"ERROR"}},
		{"nonsense", []string{"--fault", "none"}, []string{pid, "reg_mr=EXDEV"}, cli.ExitUsage, []string{"ENOMEM"}},
		{"no process", nil, []string{"reg_mr=EIO"}, cli.ExitUsage, []string{"not a process ID"}},
		{"nothing", nil, nil, cli.ExitUsage, []string{"--sweep"}},
		{"sweep of nothing", nil, []string{"--sweep"}, cli.ExitUsage, []string{"no program"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.flags != nil {
				defer start(c.flags...)()
			}
			code, stdout, stderr := program.Run(t.Context(), nil, append([]string{"fault"}, c.args...)...)
			if code != c.code || slices.ContainsFunc(c.want, func(s string) bool { return !strings.Contains(stdout+stderr, s) }) {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", code, c.code, c.want, stdout, stderr)
			}
		})
	}
}

// TestPlan: a sweep has the leading and the last calls of each kind, and its rules are rules.
func TestPlan(t *testing.T) {
	rules := plan(map[string]uint64{"reg_mr": 2, "post_send": 100, "modify_qp:rtr": 1, "wc:opcode=recv": 4, "wc:opcode=write": 1,
		"rdma_connect": 1, "create_qp": 1})
	want := []string{"create_qp=ENOMEM:1", "modify_qp:rtr=EINVAL:1", "post_send=ENOMEM:1", "post_send=ENOMEM:2", "post_send=ENOMEM:3",
		"post_send=ENOMEM:100", "rdma_connect=EINVAL:1", "reg_mr=ENOMEM:1", "reg_mr=ENOMEM:2", "wc:opcode=recv=LOC_LEN_ERR:1",
		"wc:opcode=recv=LOC_LEN_ERR:2", "wc:opcode=recv=LOC_LEN_ERR:3", "wc:opcode=recv=LOC_LEN_ERR:4", "wc:opcode=write=RETRY_EXC_ERR:1",
		"event:nth=1=QP_FATAL", "device:nth=1=gone", "cm=REJECTED", "cm=UNREACHABLE"}
	if !slices.Equal(rules, want) {
		t.Errorf("%q", rules)
	}
	for _, r := range rules {
		if _, err := fault.Parse(r); err != nil {
			t.Error(err)
		}
	}
	for _, call := range fault.Calls() {
		if len(plan(map[string]uint64{call: 1})) == 0 {
			t.Errorf("%s is not in a sweep", call)
		}
	}
}
