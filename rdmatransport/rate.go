package rdmatransport

import "github.com/softrnic/softrnic/verbs"

// Rate sets the rate that ports report, as [verbs.PortAttr.SetRate] has it. Nothing is sent slower
// or faster for it. The default is 40 Gbit/s over 4 lanes.
func Rate(gbps float64, lanes int) Option {
	return func(c *config) error {
		if err := c.port.SetRate(gbps, lanes); err != nil {
			return verbs.Errorf(verbs.ErrInvalid, opOpen, "%v", err)
		}
		return nil
	}
}
