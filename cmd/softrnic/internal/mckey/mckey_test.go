package mckey

import (
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
)

func TestMckey(t *testing.T) {
	for _, c := range []struct{ group, a, b, to string }{
		{"239.1.2.3", "10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24"},
		{"ff05::1:3", "fd00::1/64", "fd00::2/64", "fd00::3/64"},
	} {
		t.Run(c.group, func(t *testing.T) {
			t.Parallel()
			lan := new(pipe.Switch)
			one := program.Announce(t.Context(), lan, "mckey", "-m", c.group, "--addr", c.a)
			two := program.Announce(t.Context(), lan, "mckey", "-m", c.group, "--addr", c.b)
			sender := <-program.Announce(t.Context(), lan, "mckey", "-m", c.group, "-s", "--addr", c.to)
			if sender.Code != 0 || !strings.HasSuffix(sender.Stdout, "10 messages of 100 bytes sent\n") {
				t.Errorf("sender: %+v", sender)
			}
			for _, o := range []clitest.Outcome{<-one, <-two} {
				if o.Code != 0 || !strings.HasSuffix(o.Stdout, "10 messages of 100 bytes received\n") {
					t.Errorf("receiver: %+v", o)
				}
			}
		})
	}
}

func TestMckeyRefusals(t *testing.T) {
	for arg, want := range map[string]string{"": "use -m, such as -m 239.1.2.3", "-m10.0.0.1": "multicast",
		"-m239.1.2.3 -S5000": "--size", "-m239.1.2.3 -C0": "--count"} {
		args := append([]string{"mckey", "--addr", "10.0.0.1/24"}, strings.Fields(arg)...)
		if o := <-program.Announce(t.Context(), new(pipe.Switch), args...); o.Code != cli.ExitUsage || !strings.Contains(o.Stderr, want) {
			t.Errorf("%s: %+v", arg, o)
		}
	}
}
