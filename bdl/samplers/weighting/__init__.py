"""Weightings: functions of an energy histogram that change the law sampled."""
