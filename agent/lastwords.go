package agent

// maxLastWords is how many characters of what a business said last stand beside what
// the owner decides on.
const maxLastWords = 300

// LastWords is what a business said last in a conversation, for who decides on a message
// that goes on with it: the same words mean another thing there. It is redacted, without
// characters that nobody sees, and cut; goesOn tells whether anything was said in the
// conversation before, but for an introduction that is not answered.
func LastWords(v ConversationView) (said string, goesOn bool) {
	for _, m := range v.Messages {
		goesOn = goesOn || !m.Introduction || m.Reply != ""
		if m.Reply != "" {
			said = m.Reply
		}
	}
	said = RedactText(Visible(said))
	if cut := truncate(said, maxLastWords); cut != said {
		said = cut + " …"
	}
	return said, goesOn
}
