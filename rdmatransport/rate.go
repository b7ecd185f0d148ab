package rdmatransport

import "github.com/softrnic/softrnic/verbs"

// Rate sets the rate that ports report, as in [verbs.PortAttr.SetRate]. It does not affect the
// speed of sending. The default is 40 Gbit/s over 4 lanes.
func Rate(gbps float64, lanes int) Option {
	return func(c *config) error {
		if err := c.port.SetRate(gbps, lanes); err != nil {
			return verbs.Errorf(verbs.ErrInvalid, opOpen, "%v", err)
		}
		return nil
	}
}
