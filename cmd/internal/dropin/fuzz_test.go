package dropin

import (
	"path/filepath"
	"strings"
	"testing"
)

// FuzzRails: arbitrary texts of rails are an error, or rails with devices whose names are those of
// files in sysfs.
func FuzzRails(f *testing.F) {
	f.Add("kernel:eth0;shm", "10.0.0.1/24;10.0.1.1/24", "mlx5_0,siw0;mlx5_1", "", "")
	f.Add("kernel:all", "", "a,", "", "")
	f.Add("", "", "", "link=kernel:eth0;device=mlx5_0,", "link=kernel:eth1; addr=10.0.0.1")
	f.Fuzz(func(t *testing.T, link, addr, device, first, second string) {
		env := map[string]string{"SOFTRNIC_LINK": link, "SOFTRNIC_ADDR": addr, "SOFTRNIC_DEVICE": device,
			RailVariable(0): first, RailVariable(1): second}
		c, err := Settings{}.complete(func(name string) string { return env[name] }, func(link string) ([]string, error) {
			if link == AllInterfaces {
				return []string{"kernel:eth0", "kernel:eth1"}, nil
			}
			return []string{link}, nil
		})
		if err != nil {
			return
		}
		if n := len(c.Rails); n < 1 || n > MaxRails {
			t.Errorf("%d rails", n)
		}
		seen := map[string]bool{"": true}
		for _, r := range c.Rails {
			for _, name := range []string{r.RoCE, r.IWARP} {
				if name != "" && (seen[name] || !filepath.IsLocal(name) || filepath.Base(name) != name || name == "." ||
					strings.Contains(name, "\x00")) {
					t.Errorf("a device %q, after %v", name, seen)
				}
				seen[name] = true
			}
		}
		if r, err := parseRail(first); err == nil {
			if again, err := parseRail(r.Value()); err != nil || again.Addr != r.Addr || again.Device != r.Device {
				t.Errorf("%+v becomes %+v, %v", r, again, err)
			}
		}
	})
}
